package command_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/cli/command"
)

// TestAnInvitationIsALineToPaste signs in with a printed command on a machine without a context,
// and replaces a lost invitation.
func TestAnInvitationIsALineToPaste(t *testing.T) {
	r := newRig(t)
	r.signIn()
	paste := func(line string) (stderr string, code int) {
		elsewhere := newTerminal(t)
		stdin, args := pasted(line)
		_, stderr, code = elsewhere.run(stdin, args...)
		return stderr, code
	}
	first := r.must("", "user", "create", "acme/alice")
	second := r.must("", "user", "invite", "acme/alice")
	if !strings.Contains(second, " --pin ") {
		t.Fatalf("nothing is pinned: %s", second)
	}
	if said, code := paste(first); code == 0 {
		t.Errorf("a code that was renewed counts on: %s", said)
	}
	if said, code := paste(strings.Replace(second, " --pin ", " --pin 0", 1)); code == 0 {
		t.Errorf("another root is taken for this one: %s", said)
	}
	if said, code := paste(second); code != 0 {
		t.Errorf("the line does not sign in: exit %d\n%s", code, said)
	}
	if said, code := paste(second); code == 0 {
		t.Errorf("the line signs in twice: %s", said)
	}
	if _, _, code := r.run("", "user", "invite", "acme/nobody"); code == 0 {
		t.Error("nobody is invited")
	}
	// A user who may not create users cannot create invitations.
	alice := newTerminal(t)
	alice.url = r.url
	third := r.must("", "user", "invite", "acme/alice")
	stdin, args := pasted(third)
	alice.must(stdin, args...)
	if out, said, code := alice.run("", "user", "invite", "admin"); code == 0 {
		t.Errorf("a developer invites the admin: %s%s", out, said)
	}
}

// The code is read from the terminal, a file or stdin. As an argument it works, with a warning.
func TestTheCodeOfASignInIsNoArgument(t *testing.T) {
	r := newRig(t)
	r.signIn()
	r.must("", "user", "create", "acme/alice")
	const password = "another good password\n"
	login := []string{"login", r.url, "--user", "acme/alice", "--ca", r.ca(), "--password-stdin"}
	invite := func() string {
		line, code, ok := strings.Cut(strings.TrimSpace(r.must("", "user", "invite", "acme/alice")), "\n")
		if !ok || strings.Contains(line, code) {
			t.Fatalf("the line shows the code: %s", line)
		}
		return code
	}
	at := newTerminal(t)
	if _, said, exit := at.run(password, append(login, "--code-file", at.file("code", "acme/alice "+invite()+"\n"))...); exit != 0 || strings.Contains(said, "warning") {
		t.Errorf("from a file: exit %d: %s", exit, said)
	}
	if _, said, exit := at.run(invite()+"\n"+password, append(login, "--code-file", "-")...); exit != 0 || strings.Contains(said, "warning") {
		t.Errorf("from stdin: exit %d: %s", exit, said)
	}
	if _, said, exit := at.run(password, append(login, "--code", invite())...); exit != 0 || !strings.Contains(said, "warning: other users of this machine can see the value of --code") {
		t.Errorf("as an argument: exit %d: %s", exit, said)
	}
	var out, said bytes.Buffer
	var asked []string
	answers := []string{invite(), "a third good password", "a third good password"}
	exit := command.Main(t.Context(), []string{"login", r.url, "--user", "acme/alice", "--ca", r.ca(), "--code-file", "-"}, command.IO{
		In: strings.NewReader(""), Out: &out, Err: &said, Now: r.now, Env: func(k string) string { return at.env[k] }, InTTY: true,
		Secret: func(prompt string) (string, error) {
			asked = append(asked, prompt)
			return answers[len(asked)-1], nil
		},
	})
	if exit != 0 || len(asked) != 3 || !strings.Contains(asked[0], "one-use code of acme/alice") {
		t.Errorf("a person was asked %q: exit %d: %s", asked, exit, said.String())
	}
	for _, wrong := range [][]string{
		append(login, "--code-file", at.file("empty", "\n")), append(login, "--code-file", "nowhere"),
		append(login, "--code", "x", "--code-file", "-"),
	} {
		if _, said, exit := at.run("", wrong...); exit != 2 {
			t.Errorf("%v: exit %d: %s", wrong, exit, said)
		}
	}
}

// A token is read from a file, not from an argument.
func TestATokenIsReadFromAFile(t *testing.T) {
	r := newRig(t)
	r.signIn()
	at := newTerminal(t)
	if _, said, code := at.run("wrong\n", "get", "apps", "--addr", r.url, "--ca", r.ca(), "--token-file", "-"); code != 5 || strings.Contains(said, "warning") {
		t.Errorf("a wrong token from stdin: exit %d: %s", code, said)
	}
	if _, said, code := at.run("", "get", "apps", "--addr", r.url, "--ca", r.ca(), "--token-file", at.file("token", "wrong\n")); code != 5 || strings.Contains(said, "warning") {
		t.Errorf("a wrong token from a file: exit %d: %s", code, said)
	}
}

// Every flag for a secret takes a file or stdin.
func TestNoSecretIsAnArgument(t *testing.T) {
	secret := regexp.MustCompile(`token|code|password|secret|key`)
	seen := 0
	for name, kind := range command.Visible() {
		if !secret.MatchString(name) {
			continue
		}
		seen++
		if kind == "string" && !strings.HasSuffix(name, "-file") {
			t.Errorf("--%s takes a secret as an argument, which other users of the machine see", name)
		}
	}
	if seen < 4 {
		t.Errorf("the test looked at %d flags only", seen)
	}
}
