package command_test

import (
	"strings"
	"testing"
	"time"
)

// TestDoctorNamesCauseAndFix breaks one thing at a time.
func TestDoctorNamesCauseAndFix(t *testing.T) {
	r := newRig(t)
	other := newRig(t)
	r.signIn()
	out := r.must("", "doctor")
	for _, name := range []string{"configuration", "address", "certificate", "clock", "version", "sign-in"} {
		if !strings.Contains(out, "✔ "+name) {
			t.Errorf("%s is not healthy:\n%s", name, out)
		}
	}
	r.must("", "user", "create", "acme/alice")
	for _, tt := range []struct {
		what string
		args []string
		now  func() time.Time
		want string
	}{
		{"no context", []string{"--context", "nowhere"}, nil, "✗ configuration"},
		{"an address without a server", []string{"--addr", "https://127.0.0.1:1"}, nil, "✗ address"},
		{"a name without an address", []string{"--addr", "https://nowhere.invalid:1"}, nil, "✗ address"},
		{"another installation", []string{"--addr", other.url, "--ca", r.ca()}, nil, "✗ certificate"},
		{"a wrong clock", nil, func() time.Time { return time.Now().Add(-time.Hour) }, "✗ clock"},
		{"a token that does not count", []string{"--token-file", r.file("token", "wrong\n")}, nil, "✗ sign-in"},
	} {
		r.now = time.Now
		if tt.now != nil {
			r.now = tt.now
		}
		out, said, code := r.run("", append([]string{"doctor"}, tt.args...)...)
		_, after, found := strings.Cut(out, tt.want)
		if code != 1 || !found || !strings.Contains(after, "fix: ") {
			t.Errorf("%s: exit %d, want 1 and %q with a fix:\n%s%s", tt.what, code, tt.want, out, said)
		}
	}
	if out, _, _ := r.run("", "doctor", "--machine", "-o", "json"); !strings.Contains(out, `"check": "cgroups"`) || !strings.Contains(out, `"check": "mtu"`) {
		t.Errorf("doctor --machine prints\n%s", out)
	}
}
