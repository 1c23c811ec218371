package root

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addons"
	"github.com/treeline-edge/treeline/root-orchestrator/root/custom"
)

// addonNames is an addon acme/mqtt with an application of a name and kinds with one resource each.
func addonNames(version string, rev api.Revision, app string, kinds ...string) PutAddon {
	const t = api.Tenant("acme")
	in := PutAddon{Request: addons.Request{Create: rev == 0, IfMatch: rev, Record: addons.Record{ID: t.Addon("mqtt"), Version: version, By: "acme/dora"}}}
	if app != "" {
		spec := application(1)
		spec.Name = app
		in.App, in.Record.App = &spec, t.App(spec.Name, spec.Namespace)
	}
	for _, k := range kinds {
		id := t.CustomKind(k)
		in.Kinds = append(in.Kinds, custom.KindRequest{ID: id, Schema: json.RawMessage(`{}`), By: "acme/dora"})
		in.Resources = append(in.Resources, custom.Request{ID: id.Resource("own"), Spec: json.RawMessage(`"` + version + `"`), By: "acme/dora"})
		in.Record.Kinds, in.Record.Resources = append(in.Record.Kinds, id), append(in.Record.Resources, id.Resource("own"))
	}
	return in
}

// addonState is the addon and the objects that it may have.
func addonState(c *Core) string {
	a, _ := c.Addon("acme/mqtt")
	out := []string{fmt.Sprint("version ", a.Version)}
	for _, app := range c.Apps("") {
		if app.Leaving {
			continue
		}
		out = append(out, fmt.Sprintf("%s of %q with %d addresses", app.ID, c.addons.OwnerOfApp(app.ID), len(c.apps.App(app.ID).Addresses)))
	}
	for _, k := range c.CustomKinds("") {
		out = append(out, fmt.Sprintf("%s of %q", k.ID, c.addons.OwnerOfKind(k.ID)))
	}
	for _, r := range c.AllCustom("") {
		out = append(out, fmt.Sprintf("%s of %q: %s", r.ID, c.addons.OwnerOfResource(r.ID), r.Spec))
	}
	return strings.Join(out, "\n")
}

// A crash may leave any prefix of the documents of a step in the store. Then the addon is as before or as after it.
func TestACrashLeavesAnAddonAsBeforeOrAsAfter(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	var docs []store.Doc
	c := New(Config{})
	step := func(in Input) []store.Doc {
		t.Helper()
		eff := c.Step(at, in)
		if eff.Err != nil {
			t.Fatal(eff.Err)
		}
		return eff.Save
	}
	docs = append(docs, step(Start{})...)
	restore := func(docs []store.Doc) *Core {
		t.Helper()
		last := map[string]store.Doc{}
		for _, d := range docs {
			last[d.Kind+"/"+d.Key] = d
		}
		r := New(Config{})
		var kept []store.Doc
		for _, d := range last {
			if d.Data != nil {
				kept = append(kept, d)
			}
		}
		if err := r.Restore(kept); err != nil {
			t.Fatal(err)
		}
		eff := r.Step(at, Start{})
		all := append(slices.Clone(kept), eff.Save...)
		// What the start repairs stays after the next one.
		again := New(Config{})
		now := map[string]store.Doc{}
		for _, d := range all {
			if now[d.Kind+"/"+d.Key] = d; d.Data == nil {
				delete(now, d.Kind+"/"+d.Key)
			}
		}
		kept = nil
		for _, d := range now {
			if d.Kind == kindAddonChange {
				t.Errorf("the start leaves %s %s", d.Kind, d.Key)
			}
			kept = append(kept, d)
		}
		if err := again.Restore(kept); err != nil {
			t.Fatal(err)
		}
		again.Step(at, Start{})
		if a, b := addonState(r), addonState(again); a != b {
			t.Errorf("after the repair:\n%s\nafter the next start:\n%s", a, b)
		}
		return r
	}
	changes := []struct {
		what string
		in   func() Input
	}{
		{"install", func() Input { return addonNames("1.0.0", 0, "broker", "user", "topic") }},
		{"upgrade", func() Input {
			a, _ := c.Addon("acme/mqtt")
			return addonNames("2.0.0", a.Revision, "hub", "topic", "bridge")
		}},
		{"remove", func() Input { return DeleteAddon{ID: "acme/mqtt", By: "acme/dora"} }},
	}
	for _, ch := range changes {
		before := addonState(c)
		in := ch.in()
		if put, ok := in.(PutAddon); ok { // the adapter names the state that it has checked
			for i, k := range put.Kinds {
				_, put.Kinds[i].Checked = c.custom.Resources(k.ID)
			}
		}
		saves := step(in)
		after := addonState(c)
		if before == after {
			t.Fatalf("%s changes nothing:\n%s", ch.what, after)
		}
		seen := map[string]int{}
		for n := range len(saves) + 1 {
			got := addonState(restore(append(slices.Clone(docs), saves[:n]...)))
			if got != before && got != after {
				t.Errorf("%s, after %d of %d documents:\n%s\nwant what was before:\n%s\nor after it:\n%s", ch.what, n, len(saves), got, before, after)
			}
			seen[got]++
		}
		if seen[before] == 0 || seen[after] < 2 {
			t.Errorf("%s: %d restarts led back and %d forward", ch.what, seen[before], seen[after])
		}
		docs = append(docs, saves...)
	}
}

func TestAnAddonOwnsItsObjects(t *testing.T) {
	w := newWorld(t)
	c := w.c
	refused := func(what string, in Input, want error, text string) {
		t.Helper()
		before := addonState(c)
		if err := w.do(in).Err; !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %v with %q", what, err, want, text)
		}
		if after := addonState(c); after != before {
			t.Errorf("%s changes\n%s\nto\n%s", what, before, after)
		}
	}
	spec := application(1)
	spec.Name = "broker"
	w.must(Apply{Tenant: "acme", Spec: spec, By: "acme/dora"})
	w.must(PutCustomKind{ID: "acme/topic", Schema: json.RawMessage(`{}`), Create: true})
	refused("an application that exists", addonNames("1.0.0", 0, "broker", "user"), api.ErrConflict, "acme/broker")
	refused("a kind that exists", addonNames("1.0.0", 0, "hub", "user", "topic"), api.ErrConflict, "acme/topic")
	many := addonNames("1.0.0", 0, "hub", "user")
	for i := range custom.MaxKindsOfTenant {
		many.Kinds = append(many.Kinds, custom.KindRequest{ID: api.KindID(fmt.Sprint("acme/k", i)), Schema: json.RawMessage(`{}`)})
	}
	refused("more kinds than a tenant may have", many, api.ErrTooMany, "custom kinds")
	volumes := addonNames("1.0.0", 0, "hub", "user")
	volumes.App.Services[0].Files = []api.File{{Secret: "none", Path: "/x"}}
	refused("a secret that does not exist", volumes, api.ErrInvalid, "none")

	w.must(addonNames("1.0.0", 0, "hub", "user"))
	refused("again", addonNames("1.0.0", 0, "hub2", "user2"), api.ErrConflict, "installed")
	spec.Name = "hub"
	refused("apply its application", Apply{Tenant: "acme", Spec: spec}, api.ErrConflict, "acme/mqtt")
	refused("delete its application", DeleteApp{App: "acme/hub.prod"}, api.ErrConflict, "acme/mqtt")
	refused("replace its kind", PutCustomKind{ID: "acme/user", Schema: json.RawMessage(`true`)}, api.ErrConflict, "acme/mqtt")
	refused("delete its kind", DeleteCustomKind{ID: "acme/user", Force: true}, api.ErrConflict, "acme/mqtt")
	refused("replace its resource", PutCustom{ID: "acme/user:own"}, api.ErrConflict, "acme/mqtt")
	refused("delete its resource", DeleteCustom{ID: "acme/user:own"}, api.ErrConflict, "acme/mqtt")
	if _, err := c.Plan(w.now, "acme", []api.Application{spec}, nil); !errors.Is(err, api.ErrConflict) {
		t.Errorf("plan its application: %v, want ErrConflict", err)
	}
	other := addonNames("1.0.0", 0, "hub", "user")
	other.Record.ID = "acme/other"
	refused("another addon with its objects", other, api.ErrConflict, "acme/mqtt")

	kind := c.custom.Kind("acme/user")
	w.must(PutCustom{ID: "acme/user:mine", Spec: json.RawMessage(`1`), Create: true, Checked: kind.Revision, By: "acme/dora"})
	a, _ := c.Addon("acme/mqtt")
	refused("upgrade without a kind that others use", addonNames("2.0.0", a.Revision, "hub"), api.ErrConflict, "mine")
	refused("remove while others use a kind", DeleteAddon{ID: "acme/mqtt"}, api.ErrConflict, "mine")
	stale := addonNames("2.0.0", a.Revision, "hub", "user")
	refused("resources that changed while they were checked", stale, custom.ErrChecked, "acme/user")
	refused("another revision", addonNames("2.0.0", a.Revision+1000, "hub", "user"), api.ErrPrecondition, "revision")
	w.must(DeleteAddon{ID: "acme/mqtt", KeepResources: true, By: "acme/dora"})
	if got, want := addonState(c), "acme/user:mine of \"\": 1"; !strings.HasSuffix(got, want) || strings.Contains(got, "acme/mqtt") {
		t.Errorf("after the removal:\n%s\nwant the kind and the resource of a user", got)
	}
	w.must(PutCustomKind{ID: "acme/user", Schema: json.RawMessage(`true`), Checked: c.changesOf("acme/user")})
}

func (s *state) changesOf(id api.KindID) uint64 {
	_, n := s.custom.Resources(id)
	return n
}
