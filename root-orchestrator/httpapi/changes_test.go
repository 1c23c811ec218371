package httpapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/watch"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// until reads changes until one of the kind has the id, and returns the kinds and ids on the way.
func until(t *testing.T, events <-chan string, kind, id string) (seen []string) {
	t.Helper()
	for limit := time.After(30 * time.Second); ; {
		select {
		case text, ok := <-events:
			if !ok {
				t.Fatalf("the stream ended after %v, want %s %s", seen, kind, id)
			}
			var c struct{ Kind, ID string }
			check(t, json.Unmarshal([]byte(text[strings.Index(text, "{"):]), &c))
			if seen = append(seen, c.Kind+" "+c.ID); c.Kind == kind && c.ID == id {
				return seen
			}
		case <-limit:
			t.Fatalf("no %s %s within 30 s, only %v", kind, id, seen)
		}
	}
}

// One stream has the changes of all kinds that its user may see, and of no other tenant.
func TestTheStreamOfChangesHasWhatItsUserMaySee(t *testing.T) {
	r := newRig(t)
	r.join("munich", "op")
	var since api.Revision
	check(t, r.loop.Read(t.Context(), func() { since = r.core.Revision() }))
	position := watch.Position{Revision: since}.String()
	dora, eve := r.user("acme/dora", rights.ApplicationProvider), r.user("evil/eve", rights.ApplicationProvider)
	carl, admin := r.user("op/carl", rights.InfrastructureProvider), r.user("admin", rights.Admin)
	r.apply("acme", "shop", 1)
	var i api.Instance
	check(t, r.loop.Read(t.Context(), func() { i, _ = r.core.Instance(web) }))
	check(t, r.loop.Do(t.Context(), root.Report{Report: wire.Report{
		Cluster: "munich", Boot: 1, Seq: 2,
		Observed: []api.Observed{{Instance: web, Epoch: i.Epoch, State: api.Running, Node: "n07"}},
	}}, nil))
	r.apply("evil", "last", 0)
	r.apply("acme", "last", 0)
	kinds := func(seen []string) string {
		found := map[string]bool{}
		for _, s := range seen {
			kind, _, _ := strings.Cut(s, " ")
			found[kind] = true
		}
		return fmt.Sprint(found)
	}
	for _, u := range []struct {
		name, token, last, want string
	}{
		{"a developer", dora, "app acme/last.prod", "map[app:true event:true instance:true service:true]"},
		{"another tenant's", eve, "app evil/last.prod", "map[app:true event:true service:true]"},
		{"the admin", admin, "app acme/last.prod", "map[app:true cluster:true event:true instance:true service:true]"},
		{"an operator", carl, "cluster munich", "map[cluster:true]"},
	} {
		events, end := r.watchRaw("/v1/changes?since="+position, u.token)
		kind, id, _ := strings.Cut(u.last, " ")
		seen := until(t, events, kind, id)
		end()
		if got := kinds(seen); got != u.want {
			t.Errorf("the stream of %s has %s (%v), want %s", u.name, got, seen, u.want)
		}
		for _, s := range seen {
			if u.token == eve && strings.Contains(s, "acme") {
				t.Errorf("another tenant's user sees %s", s)
			}
		}
	}
	events, end := r.watchRaw("/v1/changes", dora, "Last-Event-ID", position)
	defer end()
	for limit := time.After(30 * time.Second); ; {
		select {
		case text := <-events:
			if strings.Contains(text, "n07") {
				t.Fatalf("a developer sees the name of another operator's node: %s", text)
			}
			if strings.Contains(text, "acme/last.prod") {
				return
			}
		case <-limit:
			t.Fatal("the stream does not resume by Last-Event-ID")
		}
	}
}

func TestTheStreamOfChangesNeedsATokenAndAKnownPosition(t *testing.T) {
	r := newRig(t)
	if status, _, text := r.raw("GET", "/v1/changes", "", ""); status != 401 {
		t.Errorf("without a token: %d %s, want 401", status, text)
	}
	token := r.user("acme/dora", rights.ApplicationProvider)
	if status, _, text := r.raw("GET", "/v1/changes?since=99999999", token, ""); status != 410 {
		t.Errorf("another root's position: %d %s, want 410", status, text)
	}
	if status, _, text := r.raw("GET", "/v1/changes?tenant=other", token, ""); status != 404 {
		t.Errorf("another tenant: %d %s, want 404", status, text)
	}
}

func TestTheNewestEventsAreListed(t *testing.T) {
	r := newRig(t)
	r.runs()
	token := r.user("acme/dora", rights.ApplicationProvider)
	var all, newest struct{ Items []api.Event }
	_, _, text := r.raw("GET", "/v1/events", token, "")
	check(t, json.Unmarshal([]byte(text), &all))
	_, _, text = r.raw("GET", "/v1/events?tail=2", token, "")
	check(t, json.Unmarshal([]byte(text), &newest))
	n := len(all.Items)
	if n < 3 || len(newest.Items) != 2 || newest.Items[0].Seq != all.Items[n-2].Seq || newest.Items[1].Seq != all.Items[n-1].Seq {
		t.Errorf("the newest 2 of %d events are %+v, want the last ones of %+v", n, newest.Items, all.Items)
	}
}
