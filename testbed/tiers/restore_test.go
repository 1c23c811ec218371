package tiers

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/snapshot/restore"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// A cluster is restored from a snapshot that is older than an instance, of which the root has no record either. Nothing stops and nothing is
// placed before the operator accepts that.
func TestARestoredClusterKeepsWhatItsNodesRun(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	_, cfg := c.startNode(t, "n1")
	rt := cfg.Fake.(*fakeRuntime)
	root.set(web(0))
	root.observed(web(0).Instance, api.Running)
	saved := newSaved(t)
	saved.read(c.raw(c.token, "POST", "/v1/system/snapshot", saved.request()))
	root.set(web(0), web(1))
	root.observed(web(1).Instance, api.Running)

	state := func() (s api.RestoreState) {
		check(t, c.do(c.token, "GET", "/v1/system/restore", nil, &s))
		return s
	}
	runs := func(creates, stops int, numbers ...int) bool {
		var is, want []api.InstanceID
		for _, k := range rt.running() {
			is = append(is, k.Instance)
		}
		for _, n := range numbers {
			want = append(want, web(n).Instance)
		}
		slices.Sort(is)
		made, stopped := rt.counts()
		return slices.Equal(is, want) && made == creates && stopped == stops
	}

	c.stop()
	c.cfg.Data, c.cfg.Token = filepath.Join(t.TempDir(), "cluster"), ""
	c.cfg.Dead = 0 // the default: leases from before the restore may last as long
	saved.restore(c.cfg.Data, snapshot.Cluster)
	root.set(web(0), web(2))
	c.run(t)
	eventually(t, "the cluster waits for its operator", func() bool {
		s := state()
		return s.Held && !s.AwaitsRoot && len(s.SilentNodes) == 0 && len(s.Unknown) == 1 && s.Unknown[0].Instance == web(1).Instance
	})
	if !runs(2, 0, 0, 1) {
		t.Errorf("%v run before the restore is accepted, want the two from before", rt.running())
	}
	eventually(t, "the restore is accepted", func() bool { return c.do(c.token, "POST", "/v1/system/restore", nil, nil) == nil })
	eventually(t, "the unknown instance stops, and the new one runs", func() bool { return runs(3, 1, 0, 2) })
	if s := state(); s.Held {
		t.Errorf("the state is %+v after the restore was accepted", s)
	}
}

// A root is restored from a snapshot that is older than an application, whose instance goes on until an administrator accepts the restore.
func TestARestoredRootKeepsWhatRuns(t *testing.T) {
	addr, err := freeport.Addr()
	check(t, err)
	r := startRoot(t, func(cfg *root.Config) { cfg.Listen = addr })
	check(t, r.admin.CreateTenant(t.Context(), "acme", "Acme"))
	tok, err := r.admin.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "cluster"})
	check(t, err)
	c := newCluster(t, r.anchor(t), tok.Token)
	c.run(t)
	_, cfg := c.startNode(t, "n1")
	rt := cfg.Fake.(*fakeRuntime)
	saved := newSaved(t)
	saved.read(r.admin.Raw(t.Context(), client.Request{Method: "POST", Path: "/v1/system/snapshot", Body: saved.request()}))
	_, err = r.admin.Apply(t.Context(), []byte(shop), client.ApplyOptions{Tenant: "acme"})
	check(t, err)
	eventually(t, "the root shows that the instance runs", func() bool {
		page, _, err := r.admin.Instances(t.Context(), client.ListOptions{})
		return err == nil && len(page) == 1 && page[0].State == api.Running
	})

	r.stop()
	r.cfg.Data = filepath.Join(t.TempDir(), "root")
	saved.restore(r.cfg.Data, snapshot.Root)
	began := begin(t, func(ctx context.Context) error { return root.Run(ctx, r.cfg, quiet(t)) })
	defer began.stop()
	eventually(t, "the root waits for its administrator", func() bool {
		var s api.RestoreState
		_, err := r.admin.Do(t.Context(), client.Request{Method: "GET", Path: "/v1/system/restore"}, &s)
		return err == nil && s.Held && len(s.Silent) == 0 && len(s.Unknown) == 1 && s.Unknown[0].Instance == web(0).Instance
	})
	if creates, stops := rt.counts(); creates != 1 || stops != 0 || len(rt.running()) != 1 {
		t.Errorf("%d creations and %d stops before the restore is accepted, and %v run; want 1, 0 and the instance", creates, stops, rt.running())
	}
	_, err = r.admin.Do(t.Context(), client.Request{Method: "POST", Path: "/v1/system/restore"}, nil)
	check(t, err)
	eventually(t, "the unknown instance stops", func() bool { return len(rt.running()) == 0 })
}

// saved is a snapshot for a recipient whose identity the test has.
type saved struct {
	t          *testing.T
	recipient  string
	identities []snapshot.Identity
	text       []byte
}

func newSaved(t *testing.T) *saved {
	t.Helper()
	identity, recipient, err := snapshot.NewIdentity()
	check(t, err)
	identities, err := snapshot.Identities(strings.NewReader(identity))
	check(t, err)
	return &saved{t: t, recipient: recipient, identities: identities}
}

func (s *saved) request() api.SnapshotRequest {
	return api.SnapshotRequest{Recipients: []string{s.recipient}}
}

// read takes the answer of a daemon.
func (s *saved) read(resp *http.Response, err error) {
	s.t.Helper()
	check(s.t, err)
	defer resp.Body.Close()
	s.text, err = io.ReadAll(resp.Body)
	check(s.t, err)
}

func (s *saved) restore(dir, tier string) {
	s.t.Helper()
	_, err := restore.Run(s.t.Context(), bytes.NewReader(s.text), restore.Target{Dir: dir, Tier: tier, Identities: s.identities})
	check(s.t, err)
}
