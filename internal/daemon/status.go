package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// CheckStatus returns an error unless at is an address for ServeStatus.
func CheckStatus(at string) error {
	switch {
	case at == "" || at == "off" || at == "data":
		return nil
	case strings.HasPrefix(at, "/"):
		return CheckSocket(at)
	}
	if host, _, err := net.SplitHostPort(at); err != nil || !loopback(host) {
		return fmt.Errorf("%q is not a loopback host:port, an absolute path, \"data\" or \"off\"", at)
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// ServeStatus serves a daemon's health (Health.Handler) to this machine only, until ctx ends. at
// is a loopback host:port, the absolute path of a unix socket, "data" for status.sock in the data
// directory, or "off" or "" for none. Only the daemon's user can connect to a unix socket.
func ServeStatus(ctx context.Context, at, data string, h http.Handler) error {
	listen := listenSocket
	switch {
	case at == "" || at == "off":
		<-ctx.Done()
		return nil
	case at == "data":
		at = filepath.Join(data, "status.sock")
	case !strings.HasPrefix(at, "/"):
		listen = func(at string) (net.Listener, error) { return net.Listen("tcp", at) }
	}
	ln, err := listen(at)
	if err != nil {
		return fmt.Errorf("listen for status: %w", err)
	}
	return Serve(ctx, ln, h, nil)
}

// listenSocket listens at a unix socket, which only the daemon's user can connect to. It replaces a socket that a
// crash left, and fails with ErrConflict if a process listens there, or if it is another file.
func listenSocket(at string) (net.Listener, error) {
	if err := CheckSocket(at); err != nil {
		return nil, err
	}
	switch info, err := os.Lstat(at); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is no socket, and is not replaced by one: %w", at, api.ErrConflict)
	default:
		if c, err := net.Dial("unix", at); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("another process listens at %s: %w", at, api.ErrConflict)
		}
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove the old socket: %w", err)
		}
	}
	ln, err := net.Listen("unix", at)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(at, 0o600); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("restrict the socket to its owner: %w", err)
	}
	return ln, nil
}
