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
	network := "unix"
	switch {
	case at == "" || at == "off":
		<-ctx.Done()
		return nil
	case at == "data":
		at = filepath.Join(data, "status.sock")
	case !strings.HasPrefix(at, "/"):
		network = "tcp"
	}
	if network == "unix" {
		if err := CheckSocket(at); err != nil {
			return fmt.Errorf("listen for status: %w", err)
		}
		// An existing socket is left over from a crash: the lock of the store excludes another
		// daemon.
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the old status socket: %w", err)
		}
	}
	ln, err := net.Listen(network, at)
	if err != nil {
		return fmt.Errorf("listen for status: %w", err)
	}
	if network == "unix" {
		if err := os.Chmod(at, 0o600); err != nil {
			_ = ln.Close()
			return fmt.Errorf("restrict the status socket to its owner: %w", err)
		}
	}
	return Serve(ctx, ln, h, nil)
}
