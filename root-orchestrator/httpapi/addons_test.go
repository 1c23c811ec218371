package httpapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addons"
)

func hooksAllowed(o *httpapi.Options) {
	o.WebhookNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
}

// sensors is a package with an application, a kind, a resource and a webhook.
func sensors(version string) api.NewAddon {
	return api.NewAddon{Source: "registry.example.org/sensors:" + version, Package: api.AddonPackage{
		Name: "sensors", Version: version, Description: "Sensors",
		Parameters: json.RawMessage(`{"type": "object", "required": ["place"], "properties": {
			"image": {"type": "string", "default": "example.org/web:1"}, "memory": {"type": "integer", "default": 64}, "place": {"type": "string"}}}`),
		SLA:       json.RawMessage(strings.NewReplacer(`"example.org/web:1"`, `"${{ image }}"`, `64`, `"${{memory}}"`).Replace(slaOf("sensors", 0))),
		Kinds:     []api.NewCustomKind{sensorKind()},
		Resources: []api.NewCustomResource{sensorAt("first", `{"place": "at ${{ place }}"}`)},
		Webhooks:  []api.AddonWebhook{{URL: "http://127.0.0.1:1/${{place}}", Kinds: []string{"resource"}}},
	}, Values: map[string]json.RawMessage{"place": json.RawMessage(`"roof"`)}}
}

func changesIn(changes []api.AddonChange) string {
	var out []string
	for _, c := range changes {
		if c.Kind == "webhook" {
			c.ID = "…"
		}
		out = append(out, c.Action+" "+c.Kind+" "+c.ID)
	}
	return strings.Join(out, ", ")
}

func TestAddonsAreInstalledUpgradedAndRemoved(t *testing.T) {
	r := newRig(t, hooksAllowed)
	ctx := t.Context()
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	did, err := c.InstallAddon(ctx, "", sensors("1.0.0"))
	check(t, err)
	a := did.Addon
	if a.ID != "acme/sensors" || a.Version != "1.0.0" || a.App != "acme/sensors.prod" || a.By != "acme/dora" || len(a.Webhooks) != 1 || string(a.Values["place"]) != `"roof"` {
		t.Errorf("installed %+v", a)
	}
	if got, want := changesIn(did.Changes), "create kind acme/sensor, create resource acme/sensor:first, create app acme/sensors.prod, create webhook …"; got != want {
		t.Errorf("changes: %s\nwant: %s", got, want)
	}
	if len(did.Webhooks) != 1 || did.Webhooks[0].Secret == "" || did.Webhooks[0].URL != "http://127.0.0.1:1/roof" || did.Webhooks[0].Addon != a.ID {
		t.Errorf("webhooks %+v, want one with its secret", did.Webhooks)
	}
	first, err := c.CustomResource(ctx, "acme/sensor:first")
	check(t, err)
	app, err := c.App(ctx, "acme/sensors.prod")
	check(t, err)
	if s := app.Spec.Services[0]; string(first.Spec) != `{"place":"at roof"}` || s.Code != "example.org/web:1" || s.Memory != 64 {
		t.Errorf("filled in: %s, %s with %d MB", first.Spec, s.Code, s.Memory)
	}
	_, err = c.CreateResource(ctx, "", sensorAt("mine", `{"place": "here", "unit": "C"}`))
	check(t, err)
	if err := c.DeleteWebhook(ctx, a.Webhooks[0]); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "acme/sensors") {
		t.Errorf("delete a webhook of the addon: %v, want ErrConflict", err)
	}
	if err := c.DeleteKind(ctx, "acme/sensor", 0, true); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "treeline addon remove") {
		t.Errorf("delete a kind of the addon: %v, want ErrConflict", err)
	}

	r.restart(hooksAllowed)
	c = r.client(r.user("acme/frank", rights.ApplicationProvider))
	// Each of these is refused, and changes nothing.
	next := sensors("1.1.0")
	narrow := next
	narrow.Package.Kinds = []api.NewCustomKind{{Name: "sensor", Schema: json.RawMessage(`{"properties": {"unit": {"const": "F"}}}`)}}
	badResource := next
	badResource.Package.Resources = []api.NewCustomResource{sensorAt("first", `{}`)}
	older := sensors("1.0.0-rc.1")
	badValue := next
	badValue.Values = map[string]json.RawMessage{"memory": json.RawMessage(`"much"`)}
	badSLA := next
	badSLA.Values = map[string]json.RawMessage{"memory": json.RawMessage(`-5`)}
	badHook := next
	badHook.Package.Webhooks = []api.AddonWebhook{{URL: "https://hooks.example.org"}, {URL: "http://10.0.0.1/"}}
	future := next
	future.Package.MinTreeline = "99.0.0"
	other := next
	other.Package.Name = "other"
	for _, x := range []struct {
		what string
		n    api.NewAddon
		want error
		text string
	}{
		{"a schema that a user's resource violates", narrow, api.ErrConflict, "mine"},
		{"a resource that violates its schema", badResource, api.ErrInvalid, "place"},
		{"an older version", older, api.ErrConflict, "--downgrade"},
		{"a value of another type", badValue, api.ErrInvalid, "memory"},
		{"an SLA with a fault", badSLA, api.ErrInvalid, "SLA"},
		{"a webhook to a private network", badHook, api.ErrInvalid, "10.0.0.1"},
		{"another addon", other, api.ErrInvalid, "other"},
	} {
		if _, err := c.UpgradeAddon(ctx, a.ID, x.n, client.AddonOptions{}); !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.text) {
			t.Errorf("%s: %v, want %v with %q", x.what, err, x.want, x.text)
		}
	}
	if _, err := c.UpgradeAddon(ctx, a.ID, next, client.AddonOptions{At: a.Revision + 1}); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("another revision: %v, want ErrPrecondition", err)
	}
	if _, err := c.InstallAddon(ctx, "", sensors("1.0.0")); !errors.Is(err, api.ErrConflict) {
		t.Errorf("install again: %v, want ErrConflict", err)
	}
	if now, err := c.Addon(ctx, a.ID); err != nil || fmt.Sprint(now) != fmt.Sprint(a) {
		t.Errorf("after refused upgrades:\n%+v, %v, want\n%+v", now, err, a)
	}
	if hooks, err := c.Webhooks(ctx); err != nil || len(hooks) != 1 || hooks[0].ID != a.Webhooks[0] {
		t.Errorf("after refused upgrades the webhooks are %+v, %v", hooks, err)
	}

	// The value of the installation is kept; the other one is new.
	next.Package.Resources = []api.NewCustomResource{sensorAt("second", `{"place": "${{ place }}"}`)}
	next.Values = map[string]json.RawMessage{"memory": json.RawMessage(`128`)}
	did, err = c.UpgradeAddon(ctx, a.ID, next, client.AddonOptions{At: a.Revision})
	check(t, err)
	want := "none kind acme/sensor, delete resource acme/sensor:first, create resource acme/sensor:second, update app acme/sensors.prod, delete webhook …, create webhook …"
	if got := changesIn(did.Changes); got != want { // a webhook has the rights of who created it: frank is another user
		t.Errorf("changes: %s\nwant: %s", got, want)
	}
	app, err = c.App(ctx, "acme/sensors.prod")
	check(t, err)
	hooks, err := c.Webhooks(ctx)
	check(t, err)
	if m := app.Spec.Services[0].Memory; m != 128 || string(did.Addon.Values["place"]) != `"roof"` || len(hooks) != 1 || hooks[0].By != "acme/frank" {
		t.Errorf("after the upgrade: %d MB, %+v, webhooks %+v", m, did.Addon, hooks)
	}
	same, err := c.UpgradeAddon(ctx, a.ID, next, client.AddonOptions{})
	check(t, err)
	if got, want := changesIn(same.Changes), "none kind acme/sensor, none resource acme/sensor:second, none app acme/sensors.prod, none webhook …"; got != want {
		t.Errorf("the same version again: %s\nwant: %s", got, want)
	}
	_, err = c.UpgradeAddon(ctx, a.ID, older, client.AddonOptions{Downgrade: true})
	check(t, err)

	if _, err := c.RemoveAddon(ctx, a.ID, client.AddonOptions{}); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "mine") {
		t.Errorf("remove while a user has a resource: %v, want ErrConflict", err)
	}
	gone, err := c.RemoveAddon(ctx, a.ID, client.AddonOptions{KeepResources: true})
	check(t, err)
	if got, want := changesIn(gone), "release kind acme/sensor, delete resource acme/sensor:first, delete app acme/sensors.prod, delete webhook …"; got != want {
		t.Errorf("removed: %s\nwant: %s", got, want)
	}
	check(t, c.DeleteKind(ctx, "acme/sensor", 0, true))
	docs, err := store.Load(ctx, r.store)
	check(t, err)
	for _, d := range docs {
		switch d.Kind {
		case "addon", "addonchange", "custom", "customkind", "webhook", "app":
			t.Errorf("the store still has %s %s", d.Kind, d.Key)
		}
	}
	events, _, err := c.Events(ctx, client.ListOptions{})
	check(t, err)
	var got []string
	for _, e := range events {
		if e.Kind == "addon" {
			got = append(got, fmt.Sprint(e.Object, " ", e.Reason, " ", e.Detail))
		}
	}
	wantEvents := "sensors created created by acme/dora, sensors updated changed by acme/frank, sensors updated changed by acme/frank, sensors updated changed by acme/frank, sensors deleted removed by acme/frank"
	if strings.Join(got, ", ") != wantEvents {
		t.Errorf("events: %s\nwant: %s", strings.Join(got, ", "), wantEvents)
	}
}

func TestRightsOnAddons(t *testing.T) {
	r := newRig(t, hooksAllowed)
	ctx := t.Context()
	dora := r.client(r.user("acme/dora", rights.ApplicationProvider))
	_, err := dora.InstallAddon(ctx, "", sensors("1.0.0"))
	check(t, err)
	for name, who := range map[string]*client.Client{
		"another tenant":     r.client(r.user("evil/eve", rights.OrganizationAdmin)),
		"a tenant below":     r.client(r.user("acme/sub/sam", rights.OrganizationAdmin)),
		"without the rights": r.client(r.user("acme/ian", rights.InfrastructureProvider)),
	} {
		for what, err := range map[string]error{
			"reads":    func() error { _, err := who.Addon(ctx, "acme/sensors"); return err }(),
			"installs": func() error { _, err := who.InstallAddon(ctx, "acme", sensors("1.0.0")); return err }(),
			"upgrades": func() error {
				_, err := who.UpgradeAddon(ctx, "acme/sensors", sensors("1.1.0"), client.AddonOptions{})
				return err
			}(),
			"removes": func() error {
				_, err := who.RemoveAddon(ctx, "acme/sensors", client.AddonOptions{KeepResources: true})
				return err
			}(),
		} {
			if !errors.Is(err, api.ErrNotFound) && !errors.Is(err, api.ErrForbidden) {
				t.Errorf("%s %s: %v, want it refused", name, what, err)
			}
		}
		if all, _, err := client.List[api.Addon](ctx, who, string(client.Addons), client.ListOptions{}); err == nil && len(all) > 0 {
			t.Errorf("%s lists %v", name, all)
		}
	}
	// The same name in another tenant is another addon.
	eve := r.client(r.user("evil/ed", rights.ApplicationProvider))
	did, err := eve.InstallAddon(ctx, "", sensors("3.0.0"))
	check(t, err)
	if a, err := dora.Addon(ctx, "acme/sensors"); err != nil || a.Version != "1.0.0" || did.Addon.ID != "evil/sensors" {
		t.Errorf("acme has %+v, %v, and evil %+v", a, err, did.Addon)
	}
	admin := r.client(r.user("root", rights.Admin))
	if err := admin.DeleteTenant(ctx, "evil"); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "addon (1)") {
		t.Errorf("delete a tenant with an addon: %v", err)
	}
}

func TestHostilePackagesAreRefused(t *testing.T) {
	r := newRig(t)
	token := r.user("acme/dora", rights.ApplicationProvider)
	text := func(change func(*api.NewAddon)) string {
		n := sensors("1.0.0")
		n.Package.Webhooks = nil
		change(&n)
		out, err := json.Marshal(n)
		check(t, err)
		return string(out)
	}
	deep := strings.Repeat(`[`, 50_000) + strings.Repeat(`]`, 50_000)
	for what, body := range map[string]string{
		"no JSON":          `{"package":`,
		"null":             `null`,
		"an unknown field": `{"package": {"name": "a", "version": "1.0.0", "scripts": []}}`,
		"a deep document":  `{"package": {"name": "a", "version": "1.0.0", "sla": ` + deep + `}}`,
		"a large package":  text(func(n *api.NewAddon) { n.Package.SLA = json.RawMessage(`"` + strings.Repeat("x", 300<<10) + `"`) }),
		"many values":      text(func(n *api.NewAddon) { n.Package.SLA = json.RawMessage(`[` + strings.Repeat("1,", 40_000) + `1]`) }),
		"a name of a path": text(func(n *api.NewAddon) { n.Package.Name = "../evil" }),
		"no version":       text(func(n *api.NewAddon) { n.Package.Version = "latest" }),
		"a kind of ours":   text(func(n *api.NewAddon) { n.Package.Kinds[0].Name = "service" }),
		"a foreign kind":   text(func(n *api.NewAddon) { n.Package.Resources[0].Kind = "other" }),
		"two of a name":    text(func(n *api.NewAddon) { n.Package.Resources = append(n.Package.Resources, n.Package.Resources[0]) }),
		"a path of a name": text(func(n *api.NewAddon) { n.Package.Resources[0].Name = "a/b" }),
		"two applications": text(func(n *api.NewAddon) {
			n.Package.SLA = json.RawMessage(strings.Replace(slaOf("a", 0), `"applications":[`, `"applications":[`+strings.TrimSuffix(strings.SplitN(slaOf("b", 0), "[", 2)[1], "]}")+",", 1))
		}),
		"unknown parameter": text(func(n *api.NewAddon) { n.Package.Resources[0].Spec = json.RawMessage(`{"place": "${{ home }}"}`) }),
		"no parameter":      text(func(n *api.NewAddon) { n.Package.Resources[0].Spec = json.RawMessage(`{"place": "${{ a b }}"}`) }),
		"unknown value":     text(func(n *api.NewAddon) { n.Values["x"] = json.RawMessage(`1`) }),
		"large values":      text(func(n *api.NewAddon) { n.Values["place"] = json.RawMessage(`"` + strings.Repeat("x", 17<<10) + `"`) }),
		"a value that grows": text(func(n *api.NewAddon) {
			n.Values["place"] = json.RawMessage(`"` + strings.Repeat("x", 15<<10) + `"`)
			n.Package.SLA = json.RawMessage(`["` + strings.Repeat("${{place}}", 10_000) + `"]`)
		}),
		"a schema that is expensive": text(func(n *api.NewAddon) {
			n.Package.Parameters = json.RawMessage(`{"properties": {"place": {"pattern": "(a{100}){100}"}}}`)
		}),
		"a foreign digest": text(func(n *api.NewAddon) { n.Digest = "sha256:\u001b[2J" }),
	} {
		status, _, answer := r.raw("POST", "/v1/addons", token, body)
		if status != 422 && status != 413 && status != 400 {
			t.Errorf("%s: status %d, want it refused: %.300s", what, status, answer)
		}
	}
	if all, _, err := client.List[api.Addon](t.Context(), r.client(token), string(client.Addons), client.ListOptions{}); err != nil || len(all) > 0 {
		t.Errorf("installed: %v, %v", all, err)
	}
}

func TestAddonsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	acme, other := r.client(r.user("acme/dora", rights.ApplicationProvider)), r.client(r.user("other/olga", rights.ApplicationProvider))
	small := func(i int) api.NewAddon {
		return api.NewAddon{Package: api.AddonPackage{
			Name: fmt.Sprint("a", i), Version: "1.0.0", Kinds: []api.NewCustomKind{{Name: fmt.Sprint("k", i), Schema: json.RawMessage(`{}`)}},
		}}
	}
	for i := range addons.MaxOfTenant {
		_, err := acme.InstallAddon(ctx, "", small(i))
		check(t, err)
	}
	if _, err := acme.InstallAddon(ctx, "", small(addons.MaxOfTenant)); !errors.Is(err, api.ErrTooMany) {
		t.Errorf("one more: %v, want ErrTooMany", err)
	}
	_, err := other.InstallAddon(ctx, "", small(0))
	check(t, err)
}

// A root that ends after it created a webhook, and before the addon lists it, deletes it when it starts.
func TestWebhooksOfAnInterruptedInstallationAreDeleted(t *testing.T) {
	r := newRig(t, hooksAllowed)
	ctx := t.Context()
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	did, err := c.InstallAddon(ctx, "", sensors("1.0.0"))
	check(t, err)
	docs, err := store.Load(ctx, r.store)
	check(t, err)
	r.stop()
	for _, d := range docs {
		if d.Kind == "webhook" {
			d.Data = []byte(strings.ReplaceAll(string(d.Data), d.Key, "OFACRASH"))
			d.Key, d.Version = "OFACRASH", 1
			check(t, r.store.Save(ctx, []store.Doc{d}))
		}
	}
	r.start(hooksAllowed)
	c = r.client(r.user("acme/frank", rights.ApplicationProvider))
	go func() { _ = r.web.RunWebhooks(ctx) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		hooks, err := c.Webhooks(ctx)
		check(t, err)
		if len(hooks) == 1 && hooks[0].ID == did.Addon.Webhooks[0] {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the webhooks are %+v, want the one that the addon lists", hooks)
		}
	}
}
