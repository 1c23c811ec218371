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

// TestPeopleAreAdministered: users, roles, tenants, passwords and personal tokens, by an administrator of a
// tenant who can neither raise itself nor reach another tenant's people.
func TestPeopleAreAdministered(t *testing.T) {
	r := newRig(t)
	r.signIn()
	r.must("", "tenant", "create", "rival", "--title", "The others")
	join := func(id string, roles ...string) *rig {
		t.Helper()
		args := []string{"user", "create", id}
		for _, role := range roles {
			args = append(args, "--role", role)
		}
		at := newTerminal(t)
		at.url = r.url
		stdin, line := pasted(r.must("", args...))
		at.must(stdin, line...)
		return at
	}
	boss := join("acme/boss", "Organization_Admin")
	join("rival/eve", "Application_Provider")
	chief := join("acme/chief", "Admin")

	refused := func(at *rig, stdin string, code int, args ...string) {
		t.Helper()
		if out, said, got := at.run(stdin, args...); got != code {
			t.Errorf("treeline %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, code, out, said)
		}
	}
	has := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("want %q in\n%s", w, out)
			}
		}
	}

	// No administrator of a tenant becomes more, or changes those who are more.
	refused(boss, "", 5, "user", "set", "acme/boss", "--role", "Admin")
	refused(boss, "", 5, "user", "create", "acme/mole", "--role", "Admin")
	refused(boss, "", 5, "user", "invite", "acme/chief")
	refused(boss, "", 5, "user", "set", "acme/chief", "--disable")
	refused(boss, "", 5, "user", "delete", "acme/chief", "--yes")
	for _, args := range [][]string{{"invite", "rival/eve"}, {"invite", "admin"}, {"set", "rival/eve", "--disable"}, {"delete", "rival/eve", "--yes"}, {"list", "rival/eve"}} {
		refused(chief, "", 6, append([]string{"user"}, args...)...)
	}
	refused(boss, "", 6, "tenant", "delete", "rival", "--yes")

	// Users and roles.
	boss.must("", "tenant", "create", "acme/lab")
	stdin, line := pasted(boss.must("", "user", "create", "acme/lab/bob"))
	has(boss.must("", "user", "list"), "acme/lab/bob", "invited")
	bob := newTerminal(t)
	bob.must(stdin, line...)
	if out := boss.must("", "user", "list"); strings.Contains(out, "rival") || !strings.Contains(out, "acme/lab/bob   Application_Provider   active") {
		t.Errorf("an administrator of acme sees\n%s", out)
	}
	boss.must("", "user", "set", "acme/lab/bob", "--role", "Infrastructure_Provider", "--email", "bob@example.org")
	has(boss.must("", "user", "list", "acme/lab/bob", "-o", "json"), `"Infrastructure_Provider"`, "bob@example.org")
	boss.must("", "user", "set", "acme/lab/bob", "--disable")
	refused(bob, "another good password\n", 5, "login", "--user", "acme/lab/bob", "--password-stdin")
	boss.must("", "user", "set", "acme/lab/bob", "--enable")
	bob.must("another good password\n", "login", "--user", "acme/lab/bob", "--password-stdin")
	refused(bob, "", 5, "user", "list")
	if out, said, code := boss.run("", "user", "delete", "acme/lab/nobody", "acme/lab/bob", "--yes"); code != 6 || !strings.Contains(said, "acme/lab/bob deleted") {
		t.Errorf("delete of one user of two: exit %d\n%s%s", code, out, said)
	}
	boss.must("", "tenant", "delete", "acme/lab", "--yes")
	has(r.must("", "tenant", "list"), "rival", "The others")

	// One's own password.
	refused(boss, "not this one\nlong enough here\n", 5, "passwd", "--password-stdin")
	refused(boss, "another good password\nshort\n", 1, "passwd", "--password-stdin")
	boss.must("another good password\nlong enough here\n", "passwd", "--password-stdin")
	boss.must("", "get", "apps")
	refused(boss, "another good password\n", 5, "login", "--user", "acme/boss", "--password-stdin")
	boss.must("long enough here\n", "login", "--user", "acme/boss", "--password-stdin")

	// A personal token has some of the roles, an end, and creates nothing that outlives it.
	refused(boss, "", 2, "token", "create", "--role", "Application_Provider")
	refused(boss, "", 2, "token", "create", "--name", "ci", "--uses", "3")
	refused(boss, "", 2, "token", "create", "--name", "ci", "--ttl", "10s")
	refused(boss, "", 5, "token", "create", "--name", "ci", "--role", "Admin")
	token := boss.file("token", boss.must("", "token", "create", "--name", "ci", "--role", "Organization_Admin", "--ttl", "2h", "--token-only"))
	has(boss.must("", "token", "list", "--personal"), "ci", "Organization_Admin")
	boss.must("", "user", "list", "--token-file", token)
	for _, args := range [][]string{{"user", "invite", "acme/boss"}, {"user", "set", "acme/boss", "--role", "Organization_Admin"}, {"token", "create", "--name", "more"}} {
		refused(boss, "", 5, append(args, "--token-file", token)...)
	}
	refused(boss, "long enough here\nlonger than before\n", 2, "passwd", "--password-stdin", "--token-file", token)
	boss.must("", "token", "revoke", "--personal", strings.TrimSpace(boss.must("", "token", "list", "--personal", "-o", "name")))
	refused(boss, "", 5, "user", "list", "--token-file", token)
}
