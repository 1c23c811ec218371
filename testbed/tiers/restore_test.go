package tiers

import (
	"bytes"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/snapshot/restore"
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
	identity, recipient, err := snapshot.NewIdentity()
	check(t, err)
	opens, err := snapshot.Identities(strings.NewReader(identity))
	check(t, err)
	saved := c.snapshot(recipient)
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
	_, err = restore.Run(t.Context(), bytes.NewReader(saved), restore.Target{Dir: c.cfg.Data, Tier: snapshot.Cluster, Identities: opens})
	check(t, err)
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

// snapshot returns a snapshot of the cluster for a recipient.
func (c *tier) snapshot(recipient string) []byte {
	c.t.Helper()
	req, err := http.NewRequest(http.MethodPost, c.url+"/v1/system/snapshot", strings.NewReader(`{"recipients":["`+recipient+`"]}`))
	check(c.t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := call.Do(c.http, req)
	check(c.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check(c.t, err)
	return text
}
