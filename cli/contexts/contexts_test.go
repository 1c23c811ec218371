package contexts_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/contexts"
)

func environment(pairs ...string) func(string) string {
	return func(key string) string {
		for _, p := range pairs {
			if k, v, _ := strings.Cut(p, "="); k == key {
				return v
			}
		}
		return ""
	}
}

func TestFlagsBeforeEnvironmentBeforeFile(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte("B"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := contexts.All{Current: "home", Contexts: map[string]contexts.Context{
		"home": {URL: "https://home:1", CA: "A", Tenant: "acme", Access: "a", Refresh: "r"},
		"lab":  {URL: "https://lab:1", CA: "B", Tenant: "lab", Access: "b", Refresh: "s"},
	}}
	for _, tt := range []struct {
		name string
		wish contexts.Flags
		env  []string
		want string // name url ca tenant refresh token
	}{
		{"the file", contexts.Flags{}, nil, "home https://home:1 A acme r "},
		{"environment over file", contexts.Flags{}, []string{"TREELINE_CONTEXT=lab", "TREELINE_TENANT=beta", "TREELINE_TOKEN=t"}, "lab https://lab:1 B beta s t"},
		{"flags over environment", contexts.Flags{Context: "home", Tenant: "acme/x", Token: "f"}, []string{"TREELINE_CONTEXT=lab", "TREELINE_TENANT=beta", "TREELINE_TOKEN=t"}, "home https://home:1 A acme/x r f"},
		{"another address of the same installation", contexts.Flags{Addr: "10.0.0.1:7443"}, nil, "home https://10.0.0.1:7443 A acme r "},
		{"another installation gets no session", contexts.Flags{Addr: "https://evil:1/", CA: ca}, nil, " https://evil:1 B acme  "},
		{"another installation by environment", contexts.Flags{}, []string{"TREELINE_CA=" + ca}, " https://home:1 B acme  "},
		{"the same CA from a file keeps the session", contexts.Flags{Context: "lab", CA: ca}, nil, "lab https://lab:1 B lab s "},
	} {
		c, err := contexts.Choose(all, tt.wish, environment(tt.env...))
		if got := fmt.Sprintf("%s %s %s %s %s %s", c.Name, c.URL, c.CA, c.Tenant, c.Refresh, c.Token); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.name, got, err, tt.want)
		}
	}
}

func TestWhatCannotBeChosen(t *testing.T) {
	none := contexts.All{}
	some := contexts.All{Contexts: map[string]contexts.Context{"home": {URL: "https://home:1"}}}
	for _, tt := range []struct {
		all  contexts.All
		wish contexts.Flags
		kind error
		says string
	}{
		{none, contexts.Flags{}, api.ErrUnauthenticated, "treeline login"},
		{some, contexts.Flags{Context: "lab"}, api.ErrNotFound, "existing contexts are home"},
		{some, contexts.Flags{Addr: "x:1", CA: "/nowhere"}, api.ErrInvalid, "CA"},
		{some, contexts.Flags{Context: "home", Tenant: "Acme"}, api.ErrInvalid, "tenant"},
	} {
		if _, err := contexts.Choose(tt.all, tt.wish, environment()); !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("Choose(%+v): %v, want the error of the table", tt.wish, err)
		}
	}
	// An address and a token are sufficient.
	if c, err := contexts.Choose(none, contexts.Flags{Addr: "x:1", Token: "t"}, environment()); err != nil || c.URL != "https://x:1" || c.Token != "t" {
		t.Errorf("Choose with address and token returned %+v, %v", c, err)
	}
}

func TestTheFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "treeline", "config.yaml")
	f := contexts.Open(path)
	pem := "-----BEGIN CERTIFICATE-----\nAB:c\n-----END CERTIFICATE-----\n"
	want := contexts.Context{URL: "https://home:1", Replicas: []string{"https://home:2"}, CA: pem, User: "acme/alice", Refresh: "x.y", Expires: time.Unix(1e9, 0).UTC()}
	err := f.Update(func(all *contexts.All) error {
		all.Current, all.Contexts["home"] = "home", want
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all, err := f.Load()
	if err != nil || all.Current != "home" || !reflect.DeepEqual(all.Contexts["home"], want) {
		t.Fatalf("the contexts are %+v (%v), want the saved context home", all, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %o, %v", info.Mode().Perm(), err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Load(); !errors.Is(err, api.ErrForbidden) || !strings.Contains(err.Error(), "chmod 600") {
		t.Fatalf("a file that others read: %v", err)
	}
}

func TestUnknownKeysAreNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("curent: home\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := contexts.Open(path).Load(); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "curent") || !strings.Contains(err.Error(), "newer treeline") {
		t.Fatal(err)
	}
}

// A refresh token is valid once: of concurrent commands, one uses it and the others use its result.
func TestCommandsShareARefresh(t *testing.T) {
	f := contexts.Open(filepath.Join(t.TempDir(), "config.yaml"))
	old := contexts.Context{URL: "https://home:1", Access: "old", Refresh: "r0", Expires: time.Unix(0, 0)}
	if err := f.Update(func(all *contexts.All) error { all.Contexts["home"] = old; return nil }); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	spent := 0
	refresh := func(_ context.Context, token string) (api.Session, error) {
		mu.Lock()
		defer mu.Unlock()
		if token != fmt.Sprintf("r%d", spent) {
			return api.Session{}, api.ErrUnauthenticated
		}
		spent++
		return api.Session{Access: fmt.Sprintf("a%d", spent), Refresh: fmt.Sprintf("r%d", spent), Expires: time.Now().Add(time.Hour)}, nil
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s := contexts.NewSession(f, "home", old, time.Now, refresh)
			if got, err := s.Token(t.Context(), ""); err != nil || got != "a1" {
				t.Errorf("the token is %q (%v), want a1", got, err)
			}
		})
	}
	wg.Wait()
	s := contexts.NewSession(f, "home", old, time.Now, refresh)
	if got, err := s.Token(t.Context(), "a1"); err != nil || got != "a2" {
		t.Errorf("a refused token is renewed: %q, %v", got, err)
	}
	spent = 7 // used by another program: this session has ended
	if _, err := s.Token(t.Context(), "a2"); !errors.Is(err, api.ErrUnauthenticated) || !strings.Contains(err.Error(), "treeline login") {
		t.Error(err)
	}
}

// A program in a checkout uses the checkout's file if it exists, otherwise the user's file.
func TestCheckoutsHaveContextsOfTheirOwn(t *testing.T) {
	dir := t.TempDir()
	env := environment("XDG_CONFIG_HOME=" + dir + "/user")
	user := filepath.Join(dir, "user", "treeline", "config.yaml")
	path := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	one := path("one", ".treeline", "config.yaml")
	for _, name := range []string{one, path("three", ".treeline", "config.yaml")} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("contexts: {}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for program, want := range map[string]string{
		"":                             user,
		path("one", "bin", "treeline"): one,
		path("two", "bin", "treeline"): user, // no installation was started
		path("three", "treeline"):      user, // not in bin
		"/usr/local/bin/treeline":      user,
	} {
		if got := contexts.DefaultPath(env, program); got != want {
			t.Errorf("%q uses %s, want %s", program, got, want)
		}
	}
}
