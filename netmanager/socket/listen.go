package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
)

// Listen listens on a unix socket at path, and creates the directory. It replaces a socket that a
// crash has left. It fails with ErrConflict if another netmanager listens there or the file is not a
// socket. It closes connections of users other than root and the process's own.
func Listen(path string) (net.Listener, error) {
	if err := daemon.CheckSocket(path); err != nil {
		return nil, fmt.Errorf("listen for the node engine: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // the socket itself is closed
		return nil, fmt.Errorf("create the socket's directory: %w", err)
	}
	if err := removeOld(path); err != nil {
		return nil, fmt.Errorf("listen for the node engine: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the node engine: %w", err)
	}
	// Accept checks the user as well.
	if err := os.Chmod(path, 0o600); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("restrict the socket to root: %w", err)
	}
	return listener{ln, uint32(os.Geteuid())}, nil
}

// removeOld removes a socket without a listener.
func removeOld(path string) error {
	at, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case at.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: move it away, or choose another path: %w", path, api.ErrConflict)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		_ = c.Close()
		fallthrough
	case errors.Is(err, unix.EAGAIN): // its backlog is full
		return fmt.Errorf("another netmanager serves at %s: %w", path, api.ErrConflict)
	case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		return nil
	case !errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("check for another netmanager: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the old socket: %w", err)
	}
	return nil
}

type listener struct {
	*net.UnixListener
	self uint32
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if uid, err := peer(c); err == nil && (uid == 0 || uid == l.self) {
			return c, nil
		}
		_ = c.Close()
	}
}

// peer returns the user at the other end.
func peer(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	err2 := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = cred.Uid
		}
	})
	return uid, errors.Join(err, err2)
}
