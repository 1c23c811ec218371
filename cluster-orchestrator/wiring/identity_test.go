package wiring

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rootlink"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

// An empty token in the file would authenticate requests with an empty token.
func TestShortOperatorTokenIsRefused(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	log := slog.New(slog.DiscardHandler)
	made, err := operatorToken(dir, log)
	if err != nil || len(made) < minOperatorToken {
		t.Fatalf("operatorToken returns %d bytes, %v; want at least %d", len(made), err, minOperatorToken)
	}
	if again, err := operatorToken(dir, log); err != nil || again != made {
		t.Errorf("the second start returns another token, or %v; want the same", err)
	}
	info, err := dir.Stat(OperatorFile)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("stat %s: %v, %v; want mode 0600", OperatorFile, info, err)
	}
	for _, text := range []string{"", "\n", "short\n"} {
		if err := dir.WriteFile(OperatorFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := operatorToken(dir, log); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("operatorToken with a file of %q returns %q, %v; want ErrInvalid", text, got, err)
		}
	}
}

func TestARenewalDoesNotRestoreOlderKeysOfUsers(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	authority, err := ca.NewRoot(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	id := &identities{dir: dir, verifier: trust.New(authority.Root()), log: slog.New(slog.DiscardHandler)}
	start := rootlink.Credentials{Pair: authority.Pair(), Info: api.ClusterInfo{ID: "munich"}, JWTKeys: map[string]string{"old": ""}}
	if err := id.use(start); err != nil {
		t.Fatal(err)
	}
	fetched, renewed := start, start // the renewal is answered first and saved last
	fetched.JWTKeys, renewed.Info.Location = map[string]string{"new": ""}, "Munich"
	if err := id.keep(fetched); err != nil {
		t.Fatal(err)
	}
	if err := id.saveRenewed(renewed); err != nil {
		t.Fatal(err)
	}
	stored, err := rootlink.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]rootlink.Credentials{"used": id.credentials(), "stored": stored} {
		if !maps.Equal(got.JWTKeys, fetched.JWTKeys) || got.Info.Location != "Munich" {
			t.Errorf("%s credentials have keys %v and location %q, want %v and Munich", name, got.JWTKeys, got.Info.Location, fetched.JWTKeys)
		}
	}
	another, err := ca.NewRoot(time.Now()) // the key was replaced while the root answered
	if err != nil {
		t.Fatal(err)
	}
	renewed.Pair = another.Pair()
	if err := id.saveRenewed(renewed); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a renewal of another key than the one in use: %v, want it not saved", err)
	}
}

// rootAnswers answers requests for keys.
type rootAnswers func() (status int)

func (r rootAnswers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: r(), Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{"jwt_keys":{"k":""}}`))}, nil
}

// TestKeysAreFetchedBeforeTheySign: the time between two fetches stays below the announcement of a new key, also after a
// start, an error, and many tokens with unknown keys.
func TestKeysAreFetchedBeforeTheySign(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	authority, err := ca.NewRoot(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		id := &identities{dir: dir, verifier: trust.New(authority.Root()), log: slog.New(slog.DiscardHandler), unknown: make(chan struct{}, 1)}
		if err := id.use(rootlink.Credentials{Pair: authority.Pair(), Info: api.ClusterInfo{ID: "munich"}, URL: "https://root"}); err != nil {
			t.Fatal(err)
		}
		start, status := time.Now(), http.StatusOK
		var at []time.Duration
		expect := func(wait time.Duration, when string, want ...time.Duration) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			if !slices.Equal(at, want) {
				t.Errorf("%s: fetched at %v, want %v", when, at, want)
			}
			start, at = time.Now(), nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		client := &http.Client{Transport: rootAnswers(func() int {
			at = append(at, time.Since(start))
			return status
		})}
		go func() { _ = id.followKeys(ctx, client) }()
		expect(keysEvery-time.Second, "start", 0)
		status = http.StatusServiceUnavailable
		expect(2*time.Minute, "the root is away", time.Second, keysGap+time.Second)
		status = http.StatusOK
		expect(keysEvery, "the root is back", time.Second)
		id.key("new")
		expect(time.Second, "an unknown key", 0)
		id.key("newer")
		expect(30*time.Second, "an unknown key within the gap")
		for range 100 {
			id.key("newest")
			synctest.Wait()
		}
		expect(keysEvery, "more unknown keys", keysGap-31*time.Second)
	})
}
