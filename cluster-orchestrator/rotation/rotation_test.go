package rotation_test

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rootlink"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rotation"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
)

// rig is a cluster with a root that signs, and nodes.
type rig struct {
	t      *testing.T
	root   *ca.Authority
	st     store.Store
	sealer *seal.Sealer
	*rotation.Rotation
	trusted error // of the external broker
	broker  bool  // the broker is external

	mu     sync.Mutex           // guards the fields below
	files  rootlink.Credentials // what is saved
	inUse  rootlink.Credentials
	latest string // the key that the root knows, as its address
	gen    identity.Generation
	fail   string // the step that fails
	nodes  map[api.NodeID]identity.Generation
	away   []api.NodeID
	asked  int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir, err := os.OpenRoot(t.TempDir())
	check(t, err)
	t.Cleanup(func() { dir.Close() })
	keys, err := seal.KeyFile(dir, "secrets.key", false)
	check(t, err)
	root, err := ca.NewRoot(time.Now())
	check(t, err)
	r := &rig{t: t, root: root, st: mem.New(), sealer: seal.New(keys), nodes: map[api.NodeID]identity.Generation{"n1": {}, "n2": {}}}
	key, csr, err := ca.NewRequest()
	check(t, err)
	chain, err := root.SignCluster(time.Now(), csr, "munich")
	check(t, err)
	r.files = rootlink.Credentials{Pair: ca.Pair{Chain: chain, Key: key}, Info: api.ClusterInfo{ID: "munich"}}
	r.inUse = r.files
	r.restart()
	return r
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// restart starts the cluster again with its files and its store, as after a kill.
func (r *rig) restart() {
	r.t.Helper()
	loaded, err := store.Load(r.t.Context(), r.st)
	check(r.t, err)
	var changed bool
	if r.inUse, _, changed, err = rotation.Adopt(time.Now(), loaded, r.files, r.sealer); err != nil {
		r.t.Fatal(err)
	}
	if changed {
		r.files = r.inUse
	}
	o := rotation.Options{
		Store: r.st, Loaded: loaded, Sealer: r.sealer, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Credentials: func() rootlink.Credentials {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.inUse
		},
		Use:       r.use,
		Rotate:    r.rotate,
		Retire:    r.retire,
		Behind:    r.behind,
		Connected: r.connected,
		Renew:     r.renew,
		Retired:   func(context.Context) {},
	}
	if r.broker {
		o.Announce = func(context.Context) error { return nil }
		o.Trusted = func(context.Context, ca.Pair) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.trusted
		}
	}
	r.Rotation, err = rotation.New(o)
	check(r.t, err)
}

var errKilled = errors.New("killed")

func (r *rig) killed(step string) error {
	if r.fail == step {
		return errKilled
	}
	return nil
}

func (r *rig) use(_ context.Context, c rootlink.Credentials) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.killed("use"); err != nil {
		return err
	}
	r.files, r.inUse = c, c
	return nil
}

// rotate is the root: it signs a new key of the present one, and repeats that.
func (r *rig) rotate(_ context.Context, c rootlink.Credentials, key crypto.Signer) (rootlink.Credentials, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.killed("root"); err != nil {
		return c, err
	}
	csr, err := ca.Request(key)
	check(r.t, err)
	print, err := ca.Fingerprint(csr)
	check(r.t, err)
	if r.latest != print {
		had, err := identity.GenerationOf(c.Pair.Chain[0])
		check(r.t, err)
		if had.Key != r.gen.Key {
			return c, fmt.Errorf("the name has another key: %w", api.ErrConflict)
		}
		r.latest, r.gen.Key = print, r.gen.Key+1
	}
	c.Pair.Key = key
	c.Pair.Chain, err = r.root.SignGeneration(time.Now(), csr, "munich", r.gen)
	check(r.t, err)
	if err := r.killed("answer"); err != nil {
		return c, err
	}
	return c, nil
}

func (r *rig) retire(_ context.Context, c rootlink.Credentials) (rootlink.Credentials, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.killed("root"); err != nil {
		return c, err
	}
	r.gen.Oldest = r.gen.Key
	csr, err := ca.Request(c.Pair.Key)
	check(r.t, err)
	c.Pair.Chain, err = r.root.SignGeneration(time.Now(), csr, "munich", r.gen)
	check(r.t, err)
	return c, r.killed("answer")
}

func (r *rig) behind(g identity.Generation) (all []api.AuthorityBehind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, has := range r.nodes {
		if has.Before(g) {
			all = append(all, api.AuthorityBehind{Node: n, Generation: has.Key})
		}
	}
	slices.SortFunc(all, func(a, b api.AuthorityBehind) int { return strings.Compare(string(a.Node), string(b.Node)) })
	return all
}

func (r *rig) connected(context.Context) (all []api.NodeID, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.nodes {
		if !slices.Contains(r.away, n) {
			all = append(all, n)
		}
	}
	return all, nil
}

func (r *rig) renew(_ context.Context, n api.NodeID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.away, n) {
		r.t.Errorf("node %s is not connected and was asked to renew", n)
	}
	r.asked++
	var err error
	r.nodes[n], err = identity.GenerationOf(r.inUse.Pair.Chain[0])
	return err
}

// status checks the state and the generation in use.
func (r *rig) status(state string, generation uint64) api.Authority {
	r.t.Helper()
	s, err := r.Status()
	check(r.t, err)
	if s.State != state || s.Generation != generation {
		r.t.Errorf("state %q, generation %d, want %q, %d", s.State, s.Generation, state, generation)
	}
	return s
}

// run runs the rotation until ok.
func (r *rig) run(what string, ok func(api.Authority) bool) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		check(r.t, <-done)
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s, err := r.Status()
		check(r.t, err)
		if ok(s) {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: not reached; the rotation is %+v", what, s)
		}
	}
}

func renewed(s api.Authority) bool { return len(s.Behind) == 0 }

func TestAKeyIsReplacedAndRetired(t *testing.T) {
	r := newRig(t)
	r.status("", 0)
	if err := r.Retire(t.Context(), "olga", nil); !errors.Is(err, api.ErrConflict) {
		t.Errorf("retire without a rotation: %v, want a conflict", err)
	}
	check(t, r.Begin(t.Context(), "olga"))
	r.status(api.AuthoritySigning, 1)
	if err := r.Begin(t.Context(), "olga"); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a second rotation before the end of the first: %v, want a conflict", err)
	}
	if err := r.Retire(t.Context(), "olga", nil); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "n1, n2") {
		t.Errorf("retire before the nodes have renewed: %v, want a conflict that names them", err)
	}
	r.run("all nodes have renewed", renewed)
	check(t, r.Retire(t.Context(), "olga", nil))
	r.status(api.AuthorityRetired, 1)
	check(t, r.Retire(t.Context(), "olga", nil)) // repeated
	r.run("the certificates of all nodes say what is retired", renewed)
	if r.asked != 4 {
		t.Errorf("the nodes were asked %d times to renew, want twice each", r.asked)
	}
	check(t, r.Begin(t.Context(), "olga"))
	r.status(api.AuthoritySigning, 2)
}

func TestNodesThatAreAwayAreLeftBehindByName(t *testing.T) {
	r := newRig(t)
	r.away = []api.NodeID{"n2"}
	check(t, r.Begin(t.Context(), "olga"))
	r.run("the connected node has renewed", func(s api.Authority) bool { return len(s.Behind) == 1 && s.Behind[0].Node == "n2" })
	if err := r.Retire(t.Context(), "olga", []api.NodeID{"n1"}); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "among them n2") {
		t.Errorf("retire while n2 is behind: %v, want a conflict that names it", err)
	}
	check(t, r.Retire(t.Context(), "olga", []api.NodeID{"n2"}))
	r.status(api.AuthorityRetired, 1)
}

// The process is killed at each step, and with it the answer of the root, and continues with the same key.
func TestARotationContinuesAfterAKill(t *testing.T) {
	for _, step := range []string{"root", "answer", "use"} {
		t.Run(step, func(t *testing.T) {
			r := newRig(t)
			r.fail = step
			if err := r.Begin(t.Context(), "olga"); !errors.Is(err, errKilled) {
				t.Fatalf("begin: %v, want it to fail", err)
			}
			r.fail = ""
			r.restart()
			r.run("it signs and all nodes have renewed", func(s api.Authority) bool { return s.State == api.AuthoritySigning && renewed(s) })
			r.status(api.AuthoritySigning, 1)
			r.fail = step
			if err := r.Retire(t.Context(), "olga", nil); !errors.Is(err, errKilled) {
				t.Fatalf("retire: %v, want it to fail", err)
			}
			r.fail = ""
			r.restart()
			check(t, r.Retire(t.Context(), "olga", nil))
			r.run("the certificates of all nodes say what is retired", renewed)
			r.status(api.AuthorityRetired, 1)
			if r.gen != (identity.Generation{Key: 1, Oldest: 1}) || r.files.Pair.Chain[0] == nil {
				t.Errorf("the root has the generation %+v, want one new key", r.gen)
			}
		})
	}
}

func TestTheNewKeySignsWhenAnExternalBrokerTrustsIt(t *testing.T) {
	r := newRig(t)
	r.broker, r.trusted = true, fmt.Errorf("tls: unknown certificate authority: %w", api.ErrUnavailable)
	r.restart()
	check(t, r.Begin(t.Context(), "olga"))
	s := r.status(api.AuthorityAnnounced, 0)
	if !strings.Contains(s.Waits, "unknown certificate authority") || len(r.Anchors()) == 0 {
		t.Errorf("it waits for %q with the anchors %q, want the new key to be announced", s.Waits, r.Anchors())
	}
	if err := r.Retire(t.Context(), "olga", nil); !errors.Is(err, api.ErrConflict) {
		t.Errorf("retire before the new key signs: %v, want a conflict", err)
	}
	r.restart()
	r.trusted = nil
	r.run("it signs", func(s api.Authority) bool { return s.State == api.AuthoritySigning && renewed(s) })
	if len(r.Anchors()) == 0 {
		t.Error("the broker does not trust the earlier key while it is valid")
	}
	check(t, r.Retire(t.Context(), "olga", nil))
	if a := r.Anchors(); len(a) > 0 {
		t.Errorf("the broker trusts also %s after the retirement", a)
	}
}

// A document from before the last rotation, of a backup or a hostile store, brings back no earlier key.
func TestAnOlderDocumentBringsBackNoKey(t *testing.T) {
	r := newRig(t)
	old := r.files
	check(t, r.Begin(t.Context(), "olga"))
	r.run("renewed", renewed)
	first, err := store.Load(t.Context(), r.st)
	check(t, err)
	check(t, r.Retire(t.Context(), "olga", nil))
	check(t, r.Begin(t.Context(), "olga"))
	r.status(api.AuthoritySigning, 2)
	if c, _, changed, err := rotation.Adopt(time.Now(), first, r.files, r.sealer); err != nil || changed || c.Pair.Key != r.files.Pair.Key {
		t.Errorf("an older document: changed %t, %v, want the newer key of the files", changed, err)
	}
	// The files of a standby, or of a backup, are older than the store.
	now, err := store.Load(t.Context(), r.st)
	check(t, err)
	c, before, changed, err := rotation.Adopt(time.Now(), now, old, r.sealer)
	check(t, err)
	if g, _ := identity.GenerationOf(c.Pair.Chain[0]); !changed || before == nil || g.Key != 2 {
		t.Errorf("older files: changed %t, generation %d, want the key of the store", changed, g.Key)
	}
	// With the key of another installation, the document cannot be read.
	if _, _, _, err := rotation.Adopt(time.Now(), now, old, newRig(t).sealer); err == nil {
		t.Error("the key in the store was read with another installation's secrets.key")
	}
}
