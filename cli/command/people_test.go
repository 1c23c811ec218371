package command_test

import (
	"strings"
	"testing"
)

// TestAnInvitationIsALineToPaste signs in with a printed line on a machine without a
// context. A lost line can be replaced.
func TestAnInvitationIsALineToPaste(t *testing.T) {
	r := newRig(t)
	r.signIn()
	paste := func(line string) (stderr string, code int) {
		elsewhere := newTerminal(t)
		args := append(strings.Fields(line)[1:], "--password-stdin")
		_, stderr, code = elsewhere.run("another good password\n", args...)
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
	// Who may not create users does not renew invitations.
	alice := newTerminal(t)
	alice.url = r.url
	third := r.must("", "user", "invite", "acme/alice")
	alice.must("another good password\n", append(strings.Fields(third)[1:], "--password-stdin")...)
	if out, said, code := alice.run("", "user", "invite", "admin"); code == 0 {
		t.Errorf("a developer invites the admin: %s%s", out, said)
	}
}
