package daemon

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

type debugConfig struct {
	Log Log `yaml:",inline"`
}

// A signal switches a running daemon to debug and back to its level, and profiles are at a socket of its user only.
func TestLogLevelAndProfilesOfARunningDaemon(t *testing.T) {
	at := filepath.Join(shortDir(t), "pprof.sock")
	cfg := debugConfig{DefaultLog()}
	cfg.Log.Level, cfg.Log.Pprof = "warn", at
	signals := make(chan os.Signal)
	said, out := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	ready, code := make(chan *slog.Logger), make(chan int)
	go func() {
		defer out.Close()
		code <- start(ctx, "treeline-test", cfg, Source{Env: func(string) string { return "" }, Stdout: io.Discard}, out, signals,
			func(ctx context.Context, _ debugConfig, log *slog.Logger) error {
				ready <- log
				<-ctx.Done()
				return nil
			})
	}()
	lines := bufio.NewScanner(said)
	next := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("the log has %q, want a line with %q", lines.Text(), want)
		}
	}
	log := <-ready
	for range 2 {
		for end := time.Now().Add(30 * time.Second); log.Enabled(ctx, slog.LevelInfo); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the level is not warn")
			}
		}
		signals <- syscall.SIGUSR1
		next(`"log level changed"`)
		go log.Debug("a detail")
		next(`"a detail"`)
		signals <- syscall.SIGUSR1
		next(`"log_level":"WARN"`)
	}

	if info, err := os.Stat(at); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has the mode %v, %v, want 0600", info.Mode(), err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", at)
	}}}
	for path, want := range map[string]string{
		"goroutine?debug=1": "goroutine profile:", "heap": "\x1f\x8b", "profile?seconds=1": "\x1f\x8b", "": "full goroutine stack dump",
	} {
		resp, err := client.Get("http://daemon/debug/pprof/" + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || err != nil || !strings.Contains(string(body), want) {
			t.Errorf("GET /debug/pprof/%s: %s, %v, want a profile: %.200q", path, resp.Status, err, body)
		}
	}
	cancel()
	if c := <-code; c != ExitOK {
		t.Errorf("exit code %d", c)
	}
	if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) {
		t.Error("the socket is left: ", err)
	}
}

func TestProfilesAreNotServedWithoutASocketOfTheirOwn(t *testing.T) {
	dir := shortDir(t)
	file, used := filepath.Join(dir, "file"), filepath.Join(dir, "used.sock")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", used)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, at := range []string{file, used} {
		if _, err := serveProfiles(at, slog.New(slog.DiscardHandler)); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), at) {
			t.Errorf("profiles at %s: %v, want ErrConflict", at, err)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "precious" {
		t.Errorf("the file is %q, %v", text, err)
	}
	if c, err := net.Dial("unix", used); err != nil {
		t.Error("the socket in use was replaced: ", err)
	} else {
		c.Close()
	}
	for _, at := range []string{"pprof.sock", "127.0.0.1:6060", "/" + strings.Repeat("x", 200)} {
		if err := (Log{Pprof: at}).Validate(); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("pprof_socket %q: %v, want ErrInvalid", at, err)
		}
	}
	var h Health
	if code, _ := get(t, h.Handler(nil), "/debug/pprof/"); code != 404 {
		t.Errorf("/debug/pprof/ beside /metrics: %d, want 404", code)
	}
}
