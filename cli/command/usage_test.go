package command_test

import (
	"strings"
	"testing"
)

// Without a context every request fails, and the usage errors that the commands find themselves
// come first.
func TestUsageErrorsComeBeforeAMissingContext(t *testing.T) {
	r := newTerminal(t)
	r.file("shop.yaml", shop)
	for line, want := range map[string]string{
		"scale shop/web":                                "give the number of instances once",
		"scale shop/web many":                           `"many" is not a number of instances`,
		"open cluster munich --to Acme!":                "Acme!",
		"cap cluster munich":                            "at least one limit",
		"cap node munich/n1 --memory -5":                "--memory -5",
		"apply -f nowhere.yaml":                         "nowhere.yaml",
		"apply -f " + r.dir + "/shop.yaml --if-match x": "--if-match x",
		"plan -f nowhere.yaml":                          "nowhere.yaml",
		"token create --cluster Munich!":                "Munich!",
		"tenant create Acme!":                           "Acme!",
		"drain munich/n1 --cluster oslo":                "omit --cluster",
		"get apps -o xml":                               "-o xml",
	} {
		if _, said, code := r.run("", strings.Fields(line)...); code != 2 || !strings.Contains(said, want) {
			t.Errorf("treeline %s: exit %d: %swant exit 2 and %q", line, code, said, want)
		}
	}
	for _, line := range []string{
		"get apps", "scale shop/web 3", "cap cluster munich --nodes 2", "apply -f " + r.dir + "/shop.yaml",
		"plan -f " + r.dir + "/shop.yaml", "wait shop --for=deleted", "logout", "drain munich/n1", "delete app shop drop -y",
	} {
		out, said, code := r.run("", strings.Fields(line)...)
		if code != 5 || out != "" || strings.Count(said, "\n") != 1 || !strings.Contains(said, "treeline: not signed in: run treeline login URL") {
			t.Errorf("treeline %s: exit %d: %s%swant exit 5 and one line", line, code, out, said)
		}
	}
}
