package api_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestJoinCommandsPinTheScript(t *testing.T) {
	hash := strings.Repeat("ab", 32)
	tok := api.JoinToken{ID: "1", Kind: "node", Cluster: "c1", Token: "TL1.aB-_.c"}
	if got, err := tok.JoinCommand(); err != nil || got != "echo TL1.aB-_.c | node-engine --token-file -" {
		t.Errorf("without a server of programs: %q, %v", got, err)
	}
	tok.Install = &api.Installer{URL: "https://c1.example:7444", SHA256: hash}
	got, err := tok.JoinCommand()
	for _, want := range []string{"https://c1.example:7444/install.sh", "echo '" + hash + "  '$f | sha256sum -c && ", "echo TL1.aB-_.c | sh $f node --token-file -"} {
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("%q, %v; want %q in it", got, err, want)
		}
	}
	tok.Kind = "cluster"
	if got, err := tok.JoinCommand(); err != nil || !strings.HasSuffix(got, "| sh $f cluster --name c1 --token-file -") {
		t.Errorf("for a cluster: %q, %v", got, err)
	}
	tok.Install.URL = "https://[2001:db8::1]:7444"
	if _, err := tok.JoinCommand(); err != nil {
		t.Errorf("IPv6: %v", err)
	}
}

// A cluster's answer becomes part of a line that people paste into a shell as root.
func TestJoinCommandsHaveNoMeaningOfTheirOwn(t *testing.T) {
	good := api.JoinToken{Kind: "node", Cluster: "c1", Token: "TL1.a.b", Install: &api.Installer{URL: "https://c1", SHA256: strings.Repeat("ab", 32)}}
	for name, change := range map[string]func(*api.JoinToken){
		"token":           func(k *api.JoinToken) { k.Token = "TL1.a.b; reboot" },
		"token's quotes":  func(k *api.JoinToken) { k.Token = "$(reboot)" },
		"no token":        func(k *api.JoinToken) { k.Token = "" },
		"lines":           func(k *api.JoinToken) { k.Token = "TL1.a.b\nreboot" },
		"cluster":         func(k *api.JoinToken) { k.Cluster = "c1;reboot" },
		"URL":             func(k *api.JoinToken) { k.Install.URL = "https://c1$(reboot)" },
		"URL with a path": func(k *api.JoinToken) { k.Install.URL = "https://c1/a b" },
		"plain HTTP":      func(k *api.JoinToken) { k.Install.URL = "http://c1" },
		"option":          func(k *api.JoinToken) { k.Install.URL = "-K/etc/passwd" },
		"hash":            func(k *api.JoinToken) { k.Install.SHA256 = "'; reboot #" },
		"short hash":      func(k *api.JoinToken) { k.Install.SHA256 = "ab" },
	} {
		bad, install := good, *good.Install
		bad.Install = &install
		change(&bad)
		if got, err := bad.JoinCommand(); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: %q, %v; want ErrInvalid", name, got, err)
		}
	}
}
