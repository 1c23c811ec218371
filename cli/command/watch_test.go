package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/command"
)

// A watch prints the present objects and then changes, one object per line, and deletions. Ctrl-C
// ends it without an error.
func TestAWatchStreamsObjects(t *testing.T) {
	r := newRig(t)
	r.signIn()
	sla := r.file("shop.yaml", shop)
	r.must("", "apply", "-f", sla, "--detach")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pr, pw := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- command.Main(ctx, []string{"get", "instances", "shop/web", "-w", "-o", "json"}, command.IO{
			In: strings.NewReader(""), Out: pw, Err: io.Discard, Now: time.Now, Env: func(k string) string { return r.env[k] },
		})
		pw.Close()
	}()
	dec := json.NewDecoder(pr)
	next := func() (line struct {
		api.Instance
		Gone bool `json:"gone"`
	},
	) {
		if err := dec.Decode(&line); err != nil {
			t.Fatalf("the watch ended: %v, exit %d", err, <-code)
		}
		return line
	}
	for n := range 2 {
		if i := next(); i.Number != n || i.Service != "acme/shop.prod.web.v1" {
			t.Fatalf("at first %+v", i)
		}
	}
	r.must("", "scale", "shop/web", "1")
	for i := next(); !i.Gone; i = next() {
		if !strings.HasPrefix(string(i.ID), "acme/shop.prod.web.v1#") {
			t.Fatalf("of another service: %+v", i)
		}
	}
	cancel()
	go func() { _, _ = io.Copy(io.Discard, pr) }()
	if c := <-code; c != 0 {
		t.Fatalf("Ctrl-C ends a watch with %d", c)
	}
}

// Ctrl-C ends only the following of an apply, and prints that.
func TestCtrlCLeavesItRunning(t *testing.T) {
	r := newRig(t)
	r.signIn()
	sla := r.file("shop.yaml", shop)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stderr told
	stderr.on = func(s string) {
		if strings.Contains(s, "no_cluster") { // a step was printed: the command follows
			cancel()
		}
	}
	code := command.Main(ctx, []string{"apply", "-f", sla, "--timeout", "2m"}, command.IO{
		In: strings.NewReader(""), Out: io.Discard, Err: &stderr, Now: time.Now, Env: func(k string) string { return r.env[k] },
	})
	if code == 0 || !strings.Contains(stderr.String(), "the roll-out of") {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	if out := r.must("", "get", "apps", "-o", "name"); out != "acme/shop.prod\n" {
		t.Fatalf("get apps -o name printed %q, want acme/shop.prod", out)
	}
}

// told is a writer that passes the written text to on.
type told struct {
	bytes.Buffer
	on func(string)
}

func (w *told) Write(b []byte) (int, error) {
	n, err := w.Buffer.Write(b)
	w.on(string(b))
	return n, err
}

// No password or secret is written except to the contexts file.
func TestPasswordsAreNotKept(t *testing.T) {
	r := newRig(t)
	r.signIn()
	r.env["TREELINE_TENANT"] = "acme"
	for _, args := range [][]string{{"ctx", "list", "-o", "yaml"}, {"ctx", "show", "-o", "json"}, {"whoami", "-o", "json"}} {
		out := r.must("", args...)
		if strings.Contains(out, "refresh") || strings.Contains(out, "access") {
			t.Errorf("%v shows a secret: %s", args, out)
		}
	}
	if out := r.must("", "get", "apps", "--config", r.dir+"/treeline/config.yaml"); out != "" {
		t.Errorf("get apps with another configuration printed %q, want nothing", out)
	}
	if _, _, code := r.run("", "login", "--user", "admin", "--password-stdin"); code != 2 {
		t.Errorf("an empty stdin is taken for a password: %d", code)
	}
	if _, _, code := r.run("wrong password here\n", "login", "--user", "admin", "--password-stdin"); code != 5 {
		t.Errorf("a wrong password: %d", code)
	}
}

func TestDestructiveCommandsAskAPerson(t *testing.T) {
	r := newRig(t)
	r.signIn()
	r.must("", "apply", "-f", r.file("shop.yaml", shop), "--detach")
	ask := func(answer string) (string, int) {
		var stderr bytes.Buffer
		code := command.Main(t.Context(), []string{"delete", "app", "shop"}, command.IO{
			In: strings.NewReader(answer), Out: io.Discard, Err: &stderr, InTTY: true, ErrTTY: true,
			Now: time.Now, Env: func(k string) string { return r.env[k] },
		})
		return stderr.String(), code
	}
	if said, code := ask("\n"); code != 1 || !strings.Contains(said, "acme/shop.prod: 2 services and 3 instances") {
		t.Fatalf("exit %d: %s", code, said)
	}
	if _, code := ask("y\n"); code != 0 {
		t.Fatalf("exit %d", code)
	}
	r.must("", "wait", "shop", "--for=deleted", "--timeout", "2m")
}
