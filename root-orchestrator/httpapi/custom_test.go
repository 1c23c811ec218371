package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/store"
)

const sensorSchema = `{"type": "object", "required": ["place"], "additionalProperties": false, "properties": {"place": {"type": "string"}, "unit": {"enum": ["C", "F"]}}}`

func sensorKind() api.NewCustomKind {
	return api.NewCustomKind{Name: "sensor", Schema: json.RawMessage(sensorSchema)}
}

func sensorAt(name, spec string) api.NewCustomResource {
	return api.NewCustomResource{Kind: "sensor", Name: name, Spec: json.RawMessage(spec)}
}

func TestCustomResourcesAreStoredAndChecked(t *testing.T) {
	r := newRig(t)
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	ctx := t.Context()
	if _, err := c.CreateResource(ctx, "", sensorAt("roof", `{}`)); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a resource without its kind: %v, want ErrNotFound", err)
	}
	kind, err := c.CreateKind(ctx, "", sensorKind())
	check(t, err)
	if _, err := c.CreateKind(ctx, "", sensorKind()); !errors.Is(err, api.ErrConflict) {
		t.Errorf("the kind again: %v, want ErrConflict", err)
	}
	if _, err := c.CreateResource(ctx, "", sensorAt("roof", `{"place": 1}`)); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "/place") {
		t.Errorf("an invalid resource: %v, want ErrInvalid with the place of the fault", err)
	}
	// The answer has each fault with its place in the request.
	var problem *api.Problem
	_, err = c.CreateResource(ctx, "", sensorAt("roof", `{"place": 1, "a/b": 2, "unit": "K"}`))
	if !errors.As(err, &problem) || len(problem.Errors) != 3 || problem.Errors[0].Pointer != "/spec" || problem.Errors[1].Pointer != "/spec/place" || problem.Errors[2].Pointer != "/spec/unit" {
		t.Errorf("three faults: %+v", problem)
	}
	_, err = c.ReplaceKind(ctx, kind.ID, api.NewCustomKind{Schema: json.RawMessage(`{"properties": {"a/b": {"typ": "string"}}}`)}, 0)
	if !errors.As(err, &problem) || len(problem.Errors) != 1 || problem.Errors[0].Pointer != "/schema/properties/a~1b/typ" {
		t.Errorf("a fault in a schema: %+v", problem)
	}
	roof, err := c.CreateResource(ctx, "", sensorAt("roof", `{"place": "roof"}`))
	check(t, err)
	if roof.ID != "acme/sensor:roof" || roof.Kind != "sensor" || string(roof.Spec) != `{"place":"roof"}` || roof.By != "acme/dora" {
		t.Errorf("created %+v", roof)
	}
	same, err := c.ReplaceResource(ctx, roof.ID, sensorAt("", `{ "place":"roof" }`), roof.Revision)
	check(t, err)
	next, err := c.ReplaceResource(ctx, roof.ID, sensorAt("", `{"place": "roof", "unit": "C"}`), roof.Revision)
	check(t, err)
	if same.Revision != roof.Revision || next.Revision <= roof.Revision {
		t.Errorf("revisions %d, %d and %d: want a new one for another spec only", roof.Revision, same.Revision, next.Revision)
	}
	if _, err := c.ReplaceResource(ctx, roof.ID, sensorAt("", `{"place": "x"}`), roof.Revision); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("replace an old revision: %v, want ErrPrecondition", err)
	}

	// A schema that a resource violates is refused with its name; one that allows all is taken.
	_, err = c.ReplaceKind(ctx, kind.ID, api.NewCustomKind{Schema: json.RawMessage(`{"properties": {"unit": {"const": "F"}}}`)}, kind.Revision)
	if !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "roof") {
		t.Errorf("a schema that a resource violates: %v, want ErrConflict with its name", err)
	}
	_, err = c.ReplaceKind(ctx, kind.ID, api.NewCustomKind{Description: "Sensors", Schema: json.RawMessage(`{"required": ["unit"]}`)}, kind.Revision)
	check(t, err)

	r.restart()
	c = r.client(r.user("acme/frank", rights.ApplicationProvider))
	if again, err := c.CustomResource(ctx, roof.ID); err != nil || again.Revision != next.Revision || string(again.Spec) != string(next.Spec) {
		t.Errorf("after a restart: %+v, %v, want %+v", again, err, next)
	}
	if _, err := c.CreateResource(ctx, "", sensorAt("cellar", `{}`)); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("against the new schema: %v, want ErrInvalid", err)
	}
	if err := c.DeleteKind(ctx, kind.ID, 0, false); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "roof") {
		t.Errorf("delete a kind with a resource: %v, want ErrConflict", err)
	}
	check(t, c.DeleteKind(ctx, kind.ID, 0, true))
	if all, _, err := client.List[api.CustomResource](ctx, c, string(client.CustomResources), client.ListOptions{}); err != nil || len(all) > 0 {
		t.Errorf("after the deletion of the kind: %v, %v", all, err)
	}
	events, _, err := c.Events(ctx, client.ListOptions{})
	check(t, err)
	var got []string
	for _, e := range events {
		if e.Kind == "kind" || e.Kind == "resource" {
			got = append(got, fmt.Sprint(e.Kind, " ", e.Object, " ", e.Reason))
		}
	}
	want := "kind sensor created, resource sensor:roof created, resource sensor:roof updated, kind sensor updated, kind sensor deleted"
	if strings.Join(got, ", ") != want {
		t.Errorf("events: %s\nwant: %s", strings.Join(got, ", "), want)
	}
	docs, err := store.Load(ctx, r.store)
	check(t, err)
	for _, d := range docs {
		if d.Kind == "custom" || d.Kind == "customkind" {
			t.Errorf("the store still has %s %s", d.Kind, d.Key)
		}
	}
}

func TestRightsOnCustomResources(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	dora := r.client(r.user("acme/dora", rights.ApplicationProvider))
	_, err := dora.CreateKind(ctx, "", sensorKind())
	check(t, err)
	_, err = dora.CreateResource(ctx, "", sensorAt("roof", `{"place": "roof"}`))
	check(t, err)
	for name, who := range map[string]*client.Client{
		"another tenant":     r.client(r.user("evil/eve", rights.OrganizationAdmin)),
		"a tenant below":     r.client(r.user("acme/sub/sam", rights.OrganizationAdmin)),
		"without the rights": r.client(r.user("acme/ian", rights.InfrastructureProvider)),
	} {
		for what, err := range map[string]error{
			"reads":          func() error { _, err := who.CustomResource(ctx, "acme/sensor:roof"); return err }(),
			"reads the kind": func() error { _, err := who.CustomKind(ctx, "acme/sensor"); return err }(),
			"creates":        func() error { _, err := who.CreateResource(ctx, "acme", sensorAt("x", `{"place": "x"}`)); return err }(),
			"replaces": func() error {
				_, err := who.ReplaceResource(ctx, "acme/sensor:roof", sensorAt("", `{"place": "x"}`), 0)
				return err
			}(),
			"deletes":          who.DeleteResource(ctx, "acme/sensor:roof", 0),
			"deletes the kind": who.DeleteKind(ctx, "acme/sensor", 0, true),
		} {
			if !errors.Is(err, api.ErrNotFound) && !errors.Is(err, api.ErrForbidden) {
				t.Errorf("%s %s: %v, want it refused", name, what, err)
			}
		}
	}
	// A path cannot name an object of another tenant.
	mallory := r.user("evil/mallory", rights.OrganizationAdmin)
	for _, path := range []string{"/v1/resources/acme~sensor:roof", "/v1/resources/evil~..~acme~sensor:roof", "/v1/kinds/evil~..~acme~sensor"} {
		if status, _, _ := r.raw("GET", path, mallory, ""); status != 404 {
			t.Errorf("GET %s: %d, want 404", path, status)
		}
	}
}

func TestChangesOfCustomResourcesAreWatched(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	kind, err := c.CreateKind(ctx, "", sensorKind())
	check(t, err)
	other := sensorKind()
	other.Name = "other"
	_, err = c.CreateKind(ctx, "", other)
	check(t, err)
	_, rev, err := client.List[api.CustomResource](ctx, c, string(client.CustomResources), client.ListOptions{})
	check(t, err)
	roof, err := c.CreateResource(ctx, "", sensorAt("roof", `{"place": "roof"}`))
	check(t, err)
	unseen := sensorAt("roof", `{"place": "roof"}`)
	unseen.Kind = "other"
	_, err = c.CreateResource(ctx, "", unseen)
	check(t, err)
	check(t, c.DeleteResource(ctx, roof.ID, 0))
	var got []string
	for ch, err := range client.Watch[api.CustomResource](ctx, c, client.CustomResources, client.WatchOptions{Since: rev, Under: string(kind.ID)}) {
		check(t, err)
		got = append(got, fmt.Sprint(ch.ID, " ", ch.Object != nil))
		if len(got) == 2 {
			cancel()
			break
		}
	}
	if want := "acme/sensor:roof true, acme/sensor:roof false"; strings.Join(got, ", ") != want {
		t.Errorf("watched %v, want %s", got, want)
	}
}

// A schema and the resources that it is checked against may change at the same time.
func TestNoResourceViolatesItsSchemaAfterConcurrentChanges(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	kind, err := c.CreateKind(ctx, "", api.NewCustomKind{Name: "sensor", Schema: json.RawMessage(`{}`)})
	check(t, err)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 10 {
				_, err := c.CreateResource(ctx, "", sensorAt(fmt.Sprintf("r%d-%d", i, n), `{"a": 1}`))
				if err != nil && !errors.Is(err, api.ErrInvalid) && !errors.Is(err, api.ErrConflict) {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			_, err := c.ReplaceKind(ctx, kind.ID, api.NewCustomKind{Schema: json.RawMessage(fmt.Sprintf(`{"maxProperties": %d}`, i%2))}, 0)
			if err != nil && !errors.Is(err, api.ErrConflict) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	k, err := c.CustomKind(ctx, kind.ID)
	check(t, err)
	if strings.Contains(string(k.Schema), "0") && k.Resources > 0 {
		t.Errorf("the schema is %s, and there are %d resources with a property", k.Schema, k.Resources)
	}
}

func TestChecksOfOneTenantLeaveTurnsForOthers(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	acme, other := r.client(r.user("acme/dora", rights.ApplicationProvider)), r.client(r.user("other/olga", rights.ApplicationProvider))
	expensive := `{"items": {"allOf": [` + strings.TrimSuffix(strings.Repeat(`{"type": "string"},`, 900), ",") + `]}}`
	_, err := acme.CreateKind(ctx, "", api.NewCustomKind{Name: "sensor", Schema: json.RawMessage(expensive)})
	check(t, err)
	spec := `[` + strings.TrimSuffix(strings.Repeat("1,", 140), ",") + `]`
	stop, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for stop.Err() == nil {
				_, _ = acme.CreateResource(stop, "", sensorAt(fmt.Sprint("r", i), spec))
			}
		})
	}
	_, err = other.CreateKind(ctx, "", sensorKind())
	check(t, err)
	for i := range 5 {
		_, err := other.CreateResource(ctx, "", sensorAt(fmt.Sprint("r", i), `{"place": "x"}`))
		check(t, err)
	}
	cancel()
	all.Wait()
}
