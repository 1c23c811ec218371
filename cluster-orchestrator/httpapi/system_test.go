package httpapi_test

import (
	"context"
	"crypto/x509"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/store/view"
)

// TestSnapshotsAreForTheOperator: they have the cluster's keys, which outlive the token of a thief, and which are
// none of the root's.
func TestSnapshotsAreForTheOperator(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	check(t, err)
	defer dir.Close()
	authority, err := ca.NewRoot(time.Now())
	check(t, err)
	check(t, ca.SavePair(dir, "cluster-ca.pem", authority.Pair()))
	_, mine, err := snapshot.NewIdentity()
	check(t, err)
	_, listed, err := snapshot.NewIdentity()
	check(t, err)
	for _, c := range []struct {
		configured []string
		status     map[string]int // of who asks for the recipient mine
		named      int            // of a named token that asks for none
	}{
		{nil, map[string]int{"own": 200, "named": 403, "admin": 403, "guest": 403, "otto": 403, "nobody": 401}, 422},
		{[]string{listed}, map[string]int{"own": 403, "named": 403, "admin": 403, "guest": 403}, 200},
		{[]string{listed, mine}, map[string]int{"own": 200, "named": 200, "admin": 403, "guest": 403}, 200},
	} {
		r := newRig(t, func(o *httpapi.Options) {
			o.Recipients = c.configured
			o.Snapshots = snapshot.NewTaker(snapshot.Options{
				Dir: dir, Tier: snapshot.Cluster, Cluster: "munich", Authority: func() *x509.Certificate { return authority.Pair().Chain[0] }, All: view.New(mem.New()).All,
			})
		})
		for who, want := range map[string]int{"own": 200, "named": 200, "admin": 403, "guest": 403, "otto": 403, "nobody": 401} {
			if got := r.raw(who, "GET", "/v1/system/snapshot/schedule", ""); got.Code != want {
				t.Errorf("%s reads the schedule: got %d %s, want %d", who, got.Code, got.Body, want)
			}
			if want == http.StatusOK {
				want = http.StatusConflict // none is configured
			}
			if got := r.raw(who, "POST", "/v1/system/snapshot/schedule", ""); got.Code != want {
				t.Errorf("%s takes a scheduled snapshot: got %d %s, want %d", who, got.Code, got.Body, want)
			}
		}
		for who, want := range map[string]int{"own": 200, "named": 200, "admin": 403, "guest": 403, "otto": 403, "nobody": 401} {
			if got := r.raw(who, "GET", "/v1/replicas", ""); got.Code != want {
				t.Errorf("%s lists the replicas: got %d %s, want %d", who, got.Code, got.Body, want)
			}
			if got := r.raw(who, "GET", "/v1/system/authority", ""); got.Code != want {
				t.Errorf("%s reads the certificate authority: got %d %s, want %d", who, got.Code, got.Body, want)
			}
			if got := r.raw(who, "GET", "/v1/system/restore", ""); got.Code != want {
				t.Errorf("%s reads the state after a restore: got %d %s, want %d", who, got.Code, got.Body, want)
			}
			if want == http.StatusOK {
				want = http.StatusConflict // it is not restored
			}
			for _, body := range []string{`{}`, `{"retire":true,"leave_behind":["n1"]}`} {
				if got := r.raw(who, "POST", "/v1/system/authority", body); got.Code != want {
					t.Errorf("%s rotates the certificate authority with %s: got %d %s, want %d", who, body, got.Code, got.Body, want)
				}
			}
			if got := r.raw(who, "POST", "/v1/system/restore", ""); got.Code != want {
				t.Errorf("%s accepts a restore: got %d %s, want %d", who, got.Code, got.Body, want)
			}
		}
		for who, want := range c.status {
			records := len(r.audit.List())
			got := r.raw(who, "POST", "/v1/system/snapshot", `{"recipients":["`+mine+`"]}`)
			if got.Code != want {
				t.Errorf("configured %v, %s: got %d %s, want %d", c.configured, who, got.Code, got.Body, want)
			}
			all := r.audit.List()
			if want == http.StatusOK && (len(all) != records+1 || all[records].Reason != api.ReasonAccess || !strings.Contains(all[records].Detail, mine)) {
				t.Errorf("%s: the access records are %+v, want one of the snapshot", who, all)
			}
		}
		if got := r.raw("named", "POST", "/v1/system/snapshot", `{}`); got.Code != c.named {
			t.Errorf("configured %v, a named token without a recipient: got %d %s, want %d", c.configured, got.Code, got.Body, c.named)
		}
	}
}

// noRoot is an authority whose root is away: nothing changes.
type noRoot struct{}

func (noRoot) Status() (api.Authority, error)                     { return api.Authority{}, nil }
func (noRoot) Begin(context.Context, string) error                { return api.ErrConflict }
func (noRoot) Retire(context.Context, string, []api.NodeID) error { return api.ErrConflict }
