package command_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/cli/command"
	"github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// rig is a terminal with a real root.
type rig struct {
	t    *testing.T
	dir  string
	url  string
	code string // the first admin's one-use code
	env  map[string]string
	now  func() time.Time
}

// newRig starts a root on a free port. It stops at the end of the test.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := newTerminal(t)
	cfg := wiring.Defaults()
	cfg.Data, cfg.Listen = filepath.Join(r.dir, "root"), "127.0.0.1:0"
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- wiring.Run(ctx, cfg, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the root: %v", err)
		}
	})
	for r.url == "" {
		select {
		case err := <-ended:
			ended <- nil
			t.Fatalf("the root ended: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
		if addr, err := os.ReadFile(filepath.Join(cfg.Data, wiring.AddressFile)); err == nil && len(addr) > 0 {
			r.url = "https://" + strings.TrimSpace(string(addr))
		}
	}
	text, err := os.ReadFile(filepath.Join(cfg.Data, wiring.SignInFile))
	if err != nil {
		t.Fatal(err)
	}
	_, r.code, _ = strings.Cut(strings.TrimSpace(string(text)), " ")
	return r
}

// newTerminal returns a terminal without a root.
func newTerminal(t *testing.T) *rig {
	dir := t.TempDir()
	return &rig{t: t, dir: dir, env: map[string]string{"XDG_CONFIG_HOME": dir, "HOME": dir}, now: time.Now}
}

func (r *rig) ca() string { return filepath.Join(r.dir, "root", wiring.CAFile) }

func (r *rig) run(stdin string, args ...string) (stdout, stderr string, code int) {
	return r.runFor(r.t.Context(), stdin, args...)
}

func (r *rig) runFor(ctx context.Context, stdin string, args ...string) (stdout, stderr string, code int) {
	var out, err bytes.Buffer
	code = command.Main(ctx, args, command.IO{
		In: strings.NewReader(stdin), Out: &out, Err: &err, Now: r.now,
		Env: func(k string) string { return r.env[k] },
	})
	return out.String(), err.String(), code
}

// must runs a command line that has to succeed.
func (r *rig) must(stdin string, args ...string) string {
	r.t.Helper()
	out, stderr, code := r.run(stdin, args...)
	if code != 0 {
		r.t.Fatalf("treeline %s: exit %d\n%s%s", strings.Join(args, " "), code, out, stderr)
	}
	return out
}

// signIn signs in as the admin and creates the tenant acme.
func (r *rig) signIn() {
	r.t.Helper()
	r.must(r.code+"\na good long password\n", "login", r.url, "--user", "admin", "--code-file", "-", "--ca", r.ca(), "--password-stdin", "--tenant", "acme", "--name", "test")
	r.must("", "tenant", "create", "acme")
}

// pasted returns the arguments of a printed invitation, and the user's input: the code below it and
// a password.
func pasted(invitation string) (stdin string, args []string) {
	line, code, _ := strings.Cut(strings.TrimSpace(invitation), "\n")
	return code + "\nanother good password\n", append(strings.Fields(line)[1:], "--password-stdin")
}

func (r *rig) file(name, text string) string {
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}
