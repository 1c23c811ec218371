package records

import (
	"context"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func TestTargetIsTheLastObjectOfThePath(t *testing.T) {
	const volume = "/v1/volumes/{id}"
	if got, want := Target(volume, func(string) string { return "acme~shop.prod.db.v1~0:data" }), (Record{Tenant: "acme", Kind: "volume", Object: "shop.prod.db.v1#0:data"}); got != want {
		t.Errorf("%s: %+v, want %+v", volume, got, want)
	}
	params := map[string]string{"id": "acme~lab~bob", "node": "edge-7"}
	for path, want := range map[string]Record{
		"/v1/users":                         {Kind: "user"},
		"/v1/users/{id}":                    {Tenant: "acme/lab", Kind: "user", Object: "bob"},
		"/v1/users/{id}/invite":             {Tenant: "acme/lab", Kind: "user", Object: "bob"},
		"/v1/clusters/{id}/nodes/{node}":    {Kind: "node", Object: "edge-7"},
		"/v1/clusters/{id}/nodes/{node}/up": {Kind: "node", Object: "edge-7"},
	} {
		if got := Target(path, func(name string) string { return params[name] }); got != want {
			t.Errorf("%s: %+v, want %+v", path, got, want)
		}
	}
}

func TestDescriptions(t *testing.T) {
	ctx, r := Start(t.Context(), Record{Kind: "user"})
	Of(ctx, Object("user", "acme/bob")).Text = "roles Admin"
	if got, want := r.Describe("Create user", "acme/alice"), "create user by acme/alice: roles Admin"; got != want || r.Tenant != "acme" || r.Object != "bob" {
		t.Errorf("%q of %+v, want %q", got, r, want)
	}
	hostile := Object("user", "acme/\x1b[2J")
	if got, want := hostile.Refusal("Delete user", "acme/mallory"), `refused: delete user "acme/\x1b[2J" by acme/mallory`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	Of(context.Background(), Record{}).Text = "of no record" // must not panic
}

func TestRefusedAttemptsOfOnePersonAreBounded(t *testing.T) {
	r, now := NewRefusals(), time.Unix(1000, 0)
	recorded := 0
	for range 10_000 {
		if r.Allow(now, "evil", "evil/mallory") {
			recorded++
		}
	}
	if recorded != refusalBurst {
		t.Errorf("%d attempts at once are recorded, want %d", recorded, refusalBurst)
	}
	if !r.Allow(now, api.Tenant("acme"), "acme/alice") {
		t.Error("an attempt of another person is not recorded")
	}
	if now = now.Add(time.Minute); !r.Allow(now, "evil", "evil/mallory") || r.Allow(now, "evil", "evil/mallory") {
		t.Error("a minute later, want one more record")
	}
}
