package webhooks_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/webhooks"
)

// plain seals nothing. Package internal/seal has its own tests.
type plain struct{}

func (plain) Seal(_ string, v wire.Value) ([]byte, error) { return json.Marshal(v) }

func (plain) Open(_ string, sealed []byte) (v wire.Value, err error) {
	return v, json.Unmarshal(sealed, &v)
}

// rig has hooks over a log of events in memory.
type rig struct {
	t     *testing.T
	store *mem.Store
	hooks *webhooks.Hooks
	stop  func()

	mu     sync.Mutex
	events []api.Event
	denied error // of each event
	notes  chan api.Event
}

func newRig(t *testing.T, allow ...string) *rig {
	t.Helper()
	r := &rig{t: t, store: mem.New(), notes: make(chan api.Event, 1000)}
	r.start(allow...)
	return r
}

func (r *rig) start(allow ...string) {
	r.t.Helper()
	loaded, err := store.Load(r.t.Context(), r.store)
	check(r.t, err)
	o := webhooks.Options{
		Store: r.store, Loaded: loaded, Sealer: plain{}, Log: slog.New(slog.DiscardHandler),
		Events: func(_ context.Context, since api.Revision) (out []api.Event, newest api.Revision, _ error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, e := range r.events {
				if e.Seq > since {
					out = append(out, e)
				}
			}
			return out, api.Revision(len(r.events)), nil
		},
		Shown: func(w api.Webhook, e api.Event) (api.Event, bool, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return e, e.Tenant == w.Tenant, r.denied
		},
		Note: func(_ context.Context, w api.Webhook, reason api.Reason, text string) error {
			r.notes <- r.add(api.Event{Tenant: w.Tenant, Kind: webhooks.Kind, Object: w.ID, Reason: reason, Detail: text})
			return nil
		},
	}
	for _, a := range allow {
		o.Allow = append(o.Allow, netip.MustParsePrefix(a))
	}
	r.hooks, err = webhooks.New(o)
	check(r.t, err)
	r.hooks.PauseFor(func(int) time.Duration { return time.Millisecond })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	hooks := r.hooks
	go func() { defer close(done); _ = hooks.Run(ctx) }()
	r.stop = sync.OnceFunc(func() { cancel(); <-done })
	r.t.Cleanup(r.stop)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) event(t api.Tenant, kind string) { r.add(api.Event{Tenant: t, Kind: kind, Object: "x"}) }

func (r *rig) add(e api.Event) api.Event {
	r.mu.Lock()
	e.Seq = api.Revision(len(r.events) + 1)
	r.events = append(r.events, e)
	r.mu.Unlock()
	r.hooks.Wake()
	return e
}

func (r *rig) hook(url string, t api.Tenant, kinds ...string) api.Webhook {
	r.t.Helper()
	w, err := r.hooks.Create(r.t.Context(), api.NewWebhook{URL: url, Kinds: kinds}, t, string(t)+"/alice", "")
	check(r.t, err)
	return w
}

// until waits for the hook to be as wanted.
func (r *rig) until(id, what string, ok func(api.Webhook) bool) api.Webhook {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		w, _ := r.hooks.Get(id)
		if ok(w) {
			return w
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: %+v", what, w)
		}
	}
}

// receiver is a server of a hook.
type receiver struct {
	*httptest.Server
	got chan received
	mu  sync.Mutex
	as  int // status
}

type received struct {
	header http.Header
	body   []byte
	event  api.Event
}

func newReceiver(t *testing.T) *receiver {
	c := &receiver{got: make(chan received, 1000), as: http.StatusOK}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var d api.WebhookDelivery
		_ = json.Unmarshal(body, &d)
		c.mu.Lock()
		status := c.as
		c.mu.Unlock()
		w.WriteHeader(status)
		if status == http.StatusOK {
			c.got <- received{r.Header, body, d.Event}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *receiver) answer(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.as = status
}

func TestEventsAreSignedAndSentInOrder(t *testing.T) {
	r, c := newRig(t, "127.0.0.0/8"), newReceiver(t)
	r.event("acme", "app") // before the hook
	w := r.hook(c.URL+"/in", "acme", "app")
	r.event("acme", "app")
	r.event("evil", "app")      // of another tenant
	r.event("acme", "instance") // of another kind
	r.event("acme", "app")
	for _, want := range []api.Revision{2, 5} {
		got := <-c.got
		if got.event.Seq != want || got.header.Get("Treeline-Delivery") != w.ID+"-"+strconv.Itoa(int(want)) {
			t.Fatalf("got event %d (%s), want %d", got.event.Seq, got.header.Get("Treeline-Delivery"), want)
		}
		signature := got.header.Get("Treeline-Signature")
		at, _ := strconv.ParseInt(strings.TrimPrefix(strings.Split(signature, ",")[0], "t="), 10, 64)
		if signature != webhooks.Signature(w.Secret, time.Unix(at, 0), got.body) || w.Secret == "" {
			t.Errorf("the signature %q is not that of the body", signature)
		}
	}
	if kept := r.until(w.ID, "both are counted", func(w api.Webhook) bool { return w.Delivered == 2 }); kept.Secret != "" {
		t.Error("the secret is shown again")
	}
}

func TestFailedEventsAreRepeatedAndThenDeadLetters(t *testing.T) {
	r, c := newRig(t, "127.0.0.0/8"), newReceiver(t)
	c.answer(http.StatusBadGateway)
	w := r.hook(c.URL, "acme")
	r.event("acme", "app")
	got := r.until(w.ID, "the event is a dead letter", func(w api.Webhook) bool { return len(w.Dead) == 1 && w.Tries == 0 })
	if d := got.Dead[0]; d.Event.Seq != 1 || !strings.Contains(d.Error, "status 502") {
		t.Errorf("dead letter: %+v", d)
	}
	c.answer(http.StatusOK)
	later := r.add(api.Event{Tenant: "acme", Kind: "app", Object: "x"}) // later events are sent
	if e := <-c.got; e.event.Seq != later.Seq {
		t.Errorf("got event %d, want %d", e.event.Seq, later.Seq)
	}
	check(t, r.hooks.Retry(t.Context(), w.ID))
	if e := <-c.got; e.event.Seq != 1 {
		t.Errorf("got event %d, want the dead letter", e.event.Seq)
	}
	r.until(w.ID, "no dead letter is left", func(w api.Webhook) bool { return len(w.Dead) == 0 && w.Delivered == 2 })
}

// Lasting failures have events, which no webhook sends: with webhooks that fail, each of them would cause more.
func TestFailuresHaveEventsThatAreNotSent(t *testing.T) {
	r, down, up := newRig(t, "127.0.0.0/8"), newReceiver(t), newReceiver(t)
	down.answer(http.StatusBadGateway)
	fails := []api.Webhook{r.hook(down.URL, "acme"), r.hook(down.URL, "acme", "app", "webhook")}
	r.hook(up.URL, "acme")
	r.event("acme", "app") // event 1
	noted := map[string][]string{}
	next := func() {
		t.Helper()
		select {
		case e := <-r.notes:
			noted[e.Object] = append(noted[e.Object], fmt.Sprintf("%s: %s", e.Reason, e.Detail))
		case <-time.After(30 * time.Second):
			t.Fatalf("no further event after %v", noted)
		}
	}
	for range 4 {
		next()
	}
	down.answer(http.StatusOK)
	r.add(api.Event{Tenant: "acme", Kind: "webhook", Object: "x", Reason: api.ReasonAccess}) // a record of an operation
	next()
	next()
	for _, w := range fails {
		want := []string{
			"undelivered: event 1 was not delivered in 4 tries: the receiver answered with status 502",
			"undelivered: event 1 is a dead letter after 8 tries: the receiver answered with status 502",
			": delivers events again",
		}
		if got := noted[w.ID]; !slices.Equal(got, want) {
			t.Errorf("events of a failing webhook:\n%q, want\n%q", got, want)
		}
	}
	r.event("acme", "app") // the last one
	for _, c := range []struct {
		*receiver
		want []string
	}{{up, []string{"app", "webhook access", "app"}}, {down, []string{"webhook access", "app", "webhook access", "app"}}} {
		got := []string{}
		for range c.want {
			e := <-c.got
			got = append(got, strings.TrimSpace(e.event.Kind+" "+string(e.event.Reason)))
		}
		slices.Sort(got)
		if slices.Sort(c.want); !slices.Equal(got, c.want) {
			t.Errorf("sent events: %q, want %q", got, c.want)
		}
	}
	if len(r.notes) > 0 {
		t.Errorf("further event: %+v", <-r.notes)
	}
}

func TestEventsAreSentAfterARestart(t *testing.T) {
	r, c := newRig(t, "127.0.0.0/8"), newReceiver(t)
	w := r.hook(c.URL, "acme")
	r.event("acme", "app")
	<-c.got
	r.until(w.ID, "it is recorded", func(w api.Webhook) bool { return w.Delivered == 1 })
	r.stop()
	r.event("acme", "app")
	r.start("127.0.0.0/8")
	if e := <-c.got; e.event.Seq != 2 {
		t.Errorf("got event %d, want only the one that was not sent", e.event.Seq)
	}
}

// A tenant chooses the URL, and the root is in its operator's network.
func TestHooksReachOnlyPublicAddresses(t *testing.T) {
	r := newRig(t)
	for _, url := range []string{
		"http://example.com/", "https://10.0.0.1/", "https://127.0.0.1:7443/v1/apps", "https://[::1]/", "https://169.254.169.254/latest", "https://[::ffff:10.0.0.1]/",
		"https://user:pw@example.com/", "file:///etc/passwd", "gopher://example.com", "https://", "https://" + strings.Repeat("x", 3000),
	} {
		if _, err := r.hooks.Create(t.Context(), api.NewWebhook{URL: url}, "acme", "acme/a", ""); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%.60s: got %v, want ErrInvalid", url, err)
		}
	}
	c := newReceiver(t)
	w := r.hook(strings.Replace(c.URL, "http://127.0.0.1", "https://localhost", 1), "acme") // the name of an address that is not public
	r.event("acme", "app")
	got := r.until(w.ID, "it fails", func(w api.Webhook) bool { return w.Error != "" })
	if !strings.Contains(got.Error, "webhook_networks") {
		t.Errorf("the error is %q, want the reason and the fix", got.Error)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	r, c := newRig(t, "127.0.0.0/8"), newReceiver(t)
	to := httptest.NewServer(http.RedirectHandler(c.URL, http.StatusTemporaryRedirect))
	defer to.Close()
	w := r.hook(to.URL, "acme")
	r.event("acme", "app")
	got := r.until(w.ID, "it fails", func(w api.Webhook) bool { return w.Error != "" })
	if !strings.Contains(got.Error, "status 307") || len(c.got) > 0 {
		t.Errorf("%q, %d requests were redirected", got.Error, len(c.got))
	}
}

func TestEventsEndWithTheRightsOfTheirUser(t *testing.T) {
	r, c := newRig(t, "127.0.0.0/8"), newReceiver(t)
	w := r.hook(c.URL, "acme")
	r.mu.Lock()
	r.denied = fmt.Errorf("alice has left: %w", api.ErrForbidden)
	r.mu.Unlock()
	r.event("acme", "app")
	r.until(w.ID, "it says why", func(w api.Webhook) bool { return strings.Contains(w.Error, "alice has left") })
	if len(c.got) > 0 {
		t.Error("an event was sent without the right to read it")
	}
}

func TestWebhooksOfOneTenantLeaveRoomForOthers(t *testing.T) {
	r := newRig(t)
	for i := range webhooks.MaxOwn + 1 {
		_, err := r.hooks.Create(t.Context(), api.NewWebhook{URL: "https://example.com/"}, api.Tenant("evil/"+strconv.Itoa(i)), "evil/m", "")
		if full := i == webhooks.MaxOwn; full != errors.Is(err, api.ErrConflict) {
			t.Fatalf("hook %d: %v", i, err)
		}
	}
	r.hook("https://example.com/", "acme")
}

func TestSlowReceiversOfOneTenantLeaveTurnsForOthers(t *testing.T) {
	r, c := newRig(t, "127.0.0.0/8"), newReceiver(t)
	stuck, release := make(chan struct{}, 100), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stuck <- struct{}{}; <-release }))
	defer slow.Close()
	defer close(release)
	for range 3 * webhooks.SendOwn {
		r.hook(slow.URL, "evil")
	}
	r.hook(c.URL, "acme")
	r.event("evil", "app")
	for range webhooks.SendOwn {
		<-stuck
	}
	r.event("acme", "app")
	if e := <-c.got; e.event.Tenant != "acme" {
		t.Errorf("got %+v", e.event)
	}
	if n := len(stuck); n > 0 {
		t.Errorf("%d more requests of one tenant are under way than its share", n)
	}
}

func TestADeletedHookSendsNothing(t *testing.T) {
	r, c := newRig(t, "127.0.0.0/8"), newReceiver(t)
	w, other := r.hook(c.URL+"/a", "acme"), r.hook(c.URL+"/b", "acme")
	check(t, r.hooks.Delete(t.Context(), w.ID))
	r.event("acme", "app")
	r.until(other.ID, "the other is sent", func(w api.Webhook) bool { return w.Delivered == 1 })
	if len(c.got) != 1 {
		t.Errorf("%d requests, want one", len(c.got))
	}
}
