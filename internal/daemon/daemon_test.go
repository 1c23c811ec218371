package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon/metrics"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/store"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestHealth(t *testing.T) {
	var h Health
	var storeErr, rootErr error
	h.Require("store", func(context.Context) error { return storeErr })
	h.Watch("root", func(context.Context) error { return rootErr })
	mux := h.Handler(metrics.Handler(metrics.New()))

	if code, body := get(t, mux, "/readyz"); code != 200 || body != "ok\n" {
		t.Error(code, body)
	}
	rootErr = errors.New("away")
	if code, body := get(t, mux, "/readyz?verbose"); code != 200 || !strings.Contains(body, "[!] root degraded: away") || !strings.Contains(body, "[+] store ok") {
		t.Error(code, body)
	}
	storeErr = errors.New("full")
	if code, body := get(t, mux, "/readyz"); code != 503 || !strings.Contains(body, "[-] store failed: full") {
		t.Error(code, body)
	}
	if code, body := get(t, mux, "/livez"); code != 200 || body != "ok\n" {
		t.Error(code, body)
	}
	if code, body := get(t, mux, "/version"); code != 200 || !strings.Contains(body, `"go":"go1`) {
		t.Error(code, body)
	}
	if code, body := get(t, mux, "/metrics"); code != 200 || !strings.Contains(body, "go_goroutines") || !strings.Contains(body, "process_resident_memory_bytes") {
		t.Error(code, body)
	}
	if code, _ := get(t, h.Handler(nil), "/metrics"); code != 404 {
		t.Error(code)
	}
}

func TestPartsEndTogether(t *testing.T) {
	bad := errors.New("bad")
	wait := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		second func(context.Context) error
		want   error
	}{
		"one fails": {func(context.Context) error { return bad }, bad},
		"one ends":  {func(context.Context) error { return nil }, nil},
	} {
		err := RunAll(context.Background(), Part{"waits", wait}, Part{"second", c.second})
		if !errors.Is(err, c.want) || c.want != nil && !strings.HasPrefix(err.Error(), "second: ") {
			t.Errorf("%s: Run returned %v, want the expected error with the name of its part", name, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := RunAll(ctx, Part{"a", wait}, Part{"b", wait}); err != nil {
		t.Error(err)
	}
}

func TestServeEndsStreams(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}), nil)
	}()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get("http://" + ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	_ = resp.Body.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// shortDir returns a directory whose path is short enough for a unix socket; t.TempDir contains the
// name of the test.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestNotifyDoesNotWaitForAManagerThatDoesNotRead fills the manager's socket.
func TestNotifyDoesNotWaitForAManagerThatDoesNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	for range 10_000 {
		if err = Notify(Ready); err != nil {
			break
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want a deadline that is exceeded", err)
	}
}

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify(Ready); err != nil {
		t.Error(err)
	}
	for _, name := range []string{filepath.Join(shortDir(t), "s"), fmt.Sprintf("@treeline-test-%d", os.Getpid())} {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("NOTIFY_SOCKET", name)
		if err := Notify(Ready); err != nil {
			t.Error(err)
		}
		b := make([]byte, 64)
		n, err := c.Read(b)
		if err != nil || string(b[:n]) != "READY=1" {
			t.Errorf("the notification is %q (%v), want READY=1", b[:n], err)
		}
		_ = c.Close()
		if err := Notify(Stopping); err == nil {
			t.Error("nobody listened and it was told")
		}
	}
}

func TestExitCodes(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	run := func(ctx context.Context, err error, args ...string) (int, string) {
		var out, stderr bytes.Buffer
		code := Run(ctx, "test", defaults(), Source{Args: args, Stdout: &out}, &stderr,
			func(context.Context, testConfig, *slog.Logger) error { return err })
		return code, stderr.String()
	}
	bg := context.Background()
	for want, err := range map[int]error{
		ExitOK: nil, ExitFailure: errors.New("x"), ExitConflict: fmt.Errorf("x: %w", store.ErrConflict),
		ExitUnavailable: api.ErrUnavailable, ExitAuth: api.ErrForbidden, ExitTimeout: api.ErrTimeout, ExitNotFound: api.ErrNotFound,
	} {
		code, stderr := run(bg, err)
		if code != want || (err != nil) != (strings.Count(stderr, "\n") == 1) {
			t.Errorf("error %v: exit code %d and output %q, want the code of the table and one line for an error", err, code, stderr)
		}
	}
	if code, stderr := run(bg, nil, "--nope", "--log-level=loud"); code != ExitUsage || stderr == "" {
		t.Error(code, stderr)
	}
	if code, _ := run(bg, nil, "--print-config"); code != ExitOK {
		t.Error(code)
	}
	told, cancel := context.WithCancel(bg)
	cancel()
	if code, stderr := run(told, context.Canceled); code != ExitOK || stderr != "" {
		t.Error(code, stderr)
	}
}

func TestLogFormats(t *testing.T) {
	for format, want := range map[string]string{"text": "msg=hello", "json": `"msg":"hello"`, "auto": `"msg":"hello"`} {
		var b bytes.Buffer
		log, err := Log{Format: format, Level: "info"}.Logger(&b)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("hidden")
		log.Info("hello")
		if !strings.Contains(b.String(), want) || strings.Contains(b.String(), "hidden") {
			t.Errorf("log format %s: unexpected output %s", format, b.String())
		}
	}
	if err := (Log{Format: "xml"}).Validate(); !errors.Is(err, api.ErrInvalid) {
		t.Error(err)
	}
}
