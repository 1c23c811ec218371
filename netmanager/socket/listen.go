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

// Listen listens on a unix socket at path, whose directory it makes if there is
// none. What a crash left there is replaced; a socket that answers is another
// netmanager's (ErrConflict). Connections of users other than root and our own
// are closed at once.
func Listen(path string) (net.Listener, error) {
	if err := daemon.CheckSocket(path); err != nil {
		return nil, fmt.Errorf("listen for the node engine: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // the socket itself is closed
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("another netmanager serves at %s: %w", path, api.ErrConflict)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the node engine: %w", err)
	}
	// The mode keeps others from trying; what counts is who they are (Accept).
	if err := os.Chmod(path, 0o600); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("keep the socket to root: %w", err)
	}
	return listener{ln, uint32(os.Geteuid())}, nil
}

type listener struct {
	*net.UnixListener
	self uint32
}

// Accept is net.Listener's.
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

// peer is the user at the other end.
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
