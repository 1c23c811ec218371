package daemon

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestTheStatusIsForThisMachineAlone(t *testing.T) {
	for at, ok := range map[string]bool{
		"": true, "off": true, "data": true, "/run/status.sock": true,
		"localhost:9100": true, "127.0.0.1:9100": true, "[::1]:9100": true,
		":9100": false, "0.0.0.0:9100": false, "192.0.2.1:9100": false, "status.sock": false,
	} {
		if err := CheckStatus(at); (err == nil) != ok {
			t.Errorf("CheckStatus(%q) = %v, want the opposite", at, err)
		}
	}
}

// The kernel's error, "invalid argument", does not name the limit.
func TestAPathThatIsTooLongForASocketIsNamed(t *testing.T) {
	fits := "/" + strings.Repeat("d", maxSocketPath-1)
	if err := errors.Join(CheckSocket(fits), CheckStatus(fits)); err != nil {
		t.Errorf("%d bytes: %v", len(fits), err)
	}
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", maxSocketPath))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"configured":      CheckStatus(fits + "d"),
		"in its data":     ServeStatus(t.Context(), "data", dir, http.NotFoundHandler()),
		"somewhere else":  ServeStatus(t.Context(), dir+"/status.sock", "", http.NotFoundHandler()),
		"anybody's other": CheckSocket(dir),
	} {
		if !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "at most 107: choose a directory with a shorter path") {
			t.Errorf("%s: %v, want an error that names the maximum length of a path", what, err)
		}
	}
}

func TestAStatusSocketThatACrashLeftIsReplaced(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, "status.sock")
	left, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	left.Close()

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var health Health
	go func() { done <- ServeStatus(ctx, "data", dir, health.Handler(nil)) }()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	for { // poll until it listens
		resp, err := client.Get("http://daemon/livez")
		if err == nil {
			resp.Body.Close()
			break
		}
		select {
		case err := <-done:
			t.Fatal("it ended: ", err)
		default:
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the socket is open to others: %v, %v", info.Mode(), err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the socket is left: ", err)
	}
}
