package httpapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
)

func TestWebhooksGetTheEventsOfTheirTenantOnly(t *testing.T) {
	r := newRig(t, func(o *httpapi.Options) { o.WebhookNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	go func() { _ = r.web.RunWebhooks(t.Context()) }()
	ctx := t.Context()
	dora, eve := r.client(r.user("acme/dora", rights.ApplicationProvider)), r.client(r.user("rival/eve", rights.ApplicationProvider))
	got := make(chan string, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		got <- string(body)
	}))
	defer receiver.Close()
	w, err := dora.CreateWebhook(ctx, api.NewWebhook{URL: receiver.URL, Kinds: []string{"app"}})
	check(t, err)
	if w.Secret == "" || w.Tenant != "acme" {
		t.Errorf("created %+v", w)
	}
	if _, err := eve.CreateWebhook(ctx, api.NewWebhook{URL: receiver.URL, Tenant: "acme"}); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("eve creates a webhook of acme: %v", err)
	}
	if _, err := eve.CreateWebhook(ctx, api.NewWebhook{URL: receiver.URL, Tenant: rights.System, Kinds: []string{"cluser"}}); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "cluster") {
		t.Errorf("a kind that does not exist: %v", err)
	}
	if _, err := eve.Webhook(ctx, w.ID); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("eve reads a webhook of acme: %v", err)
	}
	for _, fn := range []func() error{
		func() error { return eve.DeleteWebhook(ctx, w.ID) }, func() error { return eve.RetryWebhook(ctx, w.ID) },
	} {
		if err := fn(); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("eve changes a webhook of acme: %v", err)
		}
	}
	if all, err := eve.Webhooks(ctx); err != nil || len(all) != 0 {
		t.Errorf("eve lists %v, %v", all, err)
	}
	_, err = eve.Apply(ctx, []byte(slaOf("spy", 0)), client.ApplyOptions{})
	check(t, err)
	_, err = dora.Apply(ctx, []byte(slaOf("shop", 0)), client.ApplyOptions{})
	check(t, err)
	if text := <-got; !strings.Contains(text, "shop.prod") || strings.Contains(text, "spy") {
		t.Errorf("got %s, want the event of acme's application", text)
	}
	all, err := dora.Webhooks(ctx)
	check(t, err)
	if len(all) != 1 || all[0].Secret != "" {
		t.Errorf("listed %+v", all)
	}
	check(t, dora.DeleteWebhook(ctx, w.ID))
	if len(got) > 0 {
		t.Errorf("more events were sent: %s", <-got)
	}
}

func TestWebhooksGetTheEventsOfCustomResources(t *testing.T) {
	r := newRig(t, func(o *httpapi.Options) { o.WebhookNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	go func() { _ = r.web.RunWebhooks(t.Context()) }()
	ctx := t.Context()
	dora, eve := r.client(r.user("acme/dora", rights.ApplicationProvider)), r.client(r.user("rival/eve", rights.ApplicationProvider))
	got := make(chan api.Event, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		var d api.WebhookDelivery
		if err := json.NewDecoder(q.Body).Decode(&d); err != nil {
			t.Error(err)
		}
		got <- d.Event
	}))
	defer receiver.Close()
	_, err := dora.CreateWebhook(ctx, api.NewWebhook{URL: receiver.URL, Kinds: []string{"kind", "resource"}})
	check(t, err)
	for _, c := range []*client.Client{eve, dora} {
		kind, err := c.CreateKind(ctx, "", sensorKind())
		check(t, err)
		roof, err := c.CreateResource(ctx, "", sensorAt("roof", `{"place": "roof"}`))
		check(t, err)
		_, err = c.ReplaceResource(ctx, roof.ID, sensorAt("", `{"place": "cellar"}`), roof.Revision)
		check(t, err)
		check(t, c.DeleteResource(ctx, roof.ID, 0))
		check(t, c.DeleteKind(ctx, kind.ID, 0, false))
	}
	for _, want := range []string{"kind sensor created", "resource sensor:roof created", "resource sensor:roof updated", "resource sensor:roof deleted", "kind sensor deleted"} {
		e := <-got
		if text := fmt.Sprint(e.Kind, " ", e.Object, " ", e.Reason); e.Tenant != "acme" || text != want {
			t.Errorf("got %s of %s, want %s of acme", text, e.Tenant, want)
		}
	}
}

// TestALaterUserOfTheSameNameFeedsNoWebhook: a webhook has the rights of its creator, and the name may be given again.
func TestALaterUserOfTheSameNameFeedsNoWebhook(t *testing.T) {
	r := newRig(t, func(o *httpapi.Options) { o.WebhookNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	go func() { _ = r.web.RunWebhooks(t.Context()) }()
	ctx := t.Context()
	r.user("acme/alice", rights.Admin)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		t.Errorf("an event was sent: %s", body)
	}))
	defer receiver.Close()
	w, err := r.client(r.user("acme/dora", rights.ApplicationProvider)).CreateWebhook(ctx, api.NewWebhook{URL: receiver.URL, Kinds: []string{"app"}})
	check(t, err)
	check(t, r.accounts.DeleteUser(ctx, "acme/dora"))
	later := r.client(r.user("acme/dora", rights.ApplicationProvider))
	_, err = later.Apply(ctx, []byte(slaOf("shop", 0)), client.ApplyOptions{})
	check(t, err)
	for {
		got, err := later.Webhook(ctx, w.ID)
		check(t, err)
		if strings.Contains(got.Error, "another one of that name") {
			return
		}
		time.Sleep(50 * time.Millisecond) // the rate of requests is limited
	}
}

// The event about a webhook that fails is the tenant's.
func TestFailingWebhooksHaveEvents(t *testing.T) {
	r := newRig(t, func(o *httpapi.Options) { o.WebhookNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	go func() { _ = r.web.RunWebhooks(t.Context()) }()
	ctx := t.Context()
	dora, eve := r.client(r.user("acme/dora", rights.ApplicationProvider)), r.client(r.user("rival/eve", rights.ApplicationProvider))
	receiver := httptest.NewServer(http.NotFoundHandler())
	defer receiver.Close()
	w, err := dora.CreateWebhook(ctx, api.NewWebhook{URL: receiver.URL, Kinds: []string{"app"}})
	check(t, err)
	_, err = dora.Apply(ctx, []byte(slaOf("shop", 0)), client.ApplyOptions{})
	check(t, err)
	about := func(c *client.Client) (texts []string) {
		events, _, err := c.Events(ctx, client.ListOptions{})
		check(t, err)
		for _, e := range events {
			if e.Kind == "webhook" && e.Reason == api.ReasonUndelivered {
				texts = append(texts, e.Object+" "+e.Detail)
			}
		}
		return texts
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // the rate of requests is limited
		if got := about(dora); len(got) > 0 {
			if len(got) != 1 || !strings.HasPrefix(got[0], w.ID+" event ") || !strings.HasSuffix(got[0], "in 4 tries: the receiver answered with status 404") {
				t.Errorf("events of the webhook: %q", got)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("no event says that the webhook fails")
		}
		check(t, dora.RetryWebhook(ctx, w.ID)) // without the pauses between tries
	}
	if got := about(eve); len(got) > 0 {
		t.Errorf("eve has the events %q of acme", got)
	}
}

func TestATenantIsDeletedWithNothingLeft(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	admin := r.client(r.user("admin", rights.Admin))
	check(t, admin.CreateTenant(ctx, "acme", ""))
	_, err := admin.CreateValues(ctx, api.KindSecret, "acme", api.NewValues{Name: "db", Data: map[string][]byte{"p": []byte("x")}})
	check(t, err)
	w, err := admin.CreateWebhook(ctx, api.NewWebhook{URL: "https://example.com/x", Tenant: "acme"})
	check(t, err)
	token, err := admin.CreateJoinToken(ctx, api.TokenRequest{Kind: "cluster", Tenant: "acme"})
	check(t, err)
	err = admin.DeleteTenant(ctx, "acme")
	if !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "join token (1), secret (1), webhook (1)") {
		t.Errorf("delete a tenant with a secret, a webhook and a join token: %v", err)
	}
	check(t, admin.DeleteWebhook(ctx, w.ID))
	check(t, admin.DeleteValues(ctx, api.KindSecret, "acme/db", 0, false))
	check(t, admin.RevokeJoinToken(ctx, "", token.ID))
	check(t, admin.DeleteTenant(ctx, "acme"))
}
