// Package webhooks sends stored events to the URLs that people have registered. Each event is signed, sent in
// order and at least once, and repeated with growing pauses; what cannot be delivered is kept as a dead letter.
//
//	hooks, err := webhooks.New(webhooks.Options{Store: st, Loaded: docs, …})
//	go hooks.Run(ctx)
//	hooks.Wake() // an event was stored
//
// A URL is a tenant's, and the root is in the operator's network: the address of every connection is checked, so
// that a hook reaches public addresses and what the operator allows, and redirects are not followed.
package webhooks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/probe"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Kind is the kind of the documents in a store.
const Kind = "webhook"

const (
	maxHooks = 1000
	maxOwn   = 100 // of one topmost tenant

	sendAtOnce = 32
	sendOwn    = 8 // of one topmost tenant
	sendTime   = 10 * time.Second

	lookEvery = 100 * time.Millisecond // at most, for one hook

	maxTries = 8
	// noteTries is the number of failed tries of one event after which an event says that the webhook fails. It takes
	// 21 s, which bounds the events of a receiver that fails and works in turn.
	noteTries = 4
	maxPause  = time.Hour
	maxDead   = 100 // dead letters of one hook
	maxError  = 200 // characters
)

var _ = fairshare.Declare(fairshare.Bound{
	Resource: "webhooks", Total: maxHooks, Share: []int{maxOwn}, Per: "tenant",
	Beyond: "409 until some are deleted", Attack: "TestWebhooksOfOneTenantLeaveRoomForOthers",
})

var sendTurns = fairshare.Declare(fairshare.Bound{
	Resource: "webhooks that wait to send an event", Total: maxHooks, Share: []int{maxOwn}, Per: "tenant",
	Beyond: "32 send at once, 8 of one tenant, and tenants take turns", Attack: "TestSlowReceiversOfOneTenantLeaveTurnsForOthers",
})

// Hook is a stored webhook.
type Hook struct {
	api.Webhook
	Sealed []byte `json:"sealed"` // its secret
	// Sent is the newest event that was delivered or given up.
	Sent  api.Revision `json:"sent"`
	Retry bool         `json:"retry,omitempty"` // send the dead letters once more
	// Failing says that an event said that the webhook fails, and none since that it delivers again.
	Failing bool `json:"failing,omitempty"`
}

// Sealer encrypts secrets.
type Sealer interface {
	Seal(label string, v wire.Value) ([]byte, error)
	Open(label string, sealed []byte) (wire.Value, error)
}

// Options configures the hooks.
type Options struct {
	Store  store.Store
	Loaded []store.Doc // all documents in the store
	Sealer Sealer
	// Events returns the stored events after a revision, the oldest first, and the newest revision.
	Events func(ctx context.Context, since api.Revision) ([]api.Event, api.Revision, error)
	// Shown returns an event as the creator of a hook may see it. It returns false for an event that the creator may
	// not see, and an error if the creator may read no events of the hook's tenant any more.
	Shown func(w api.Webhook, e api.Event) (api.Event, bool, error)
	// Note stores an event about the deliveries of a hook, which is sent to no hook.
	Note  func(ctx context.Context, w api.Webhook, r api.Reason, text string) error
	Allow []netip.Prefix   // networks besides public ones to which hooks may be sent, also without TLS
	Now   func() time.Time // default time.Now
	Log   *slog.Logger     // default slog.Default()
}

// Hooks are the webhooks of an installation. They are safe for concurrent use.
type Hooks struct {
	opt   Options
	table *docs.Table[Hook]
	turns *fairshare.Turns
	http  *http.Client

	mu      sync.Mutex // guards the fields below
	changed chan struct{}
	serving map[string]bool
	pause   func(tries int) time.Duration
}

// New returns the hooks among the loaded documents.
func New(o Options) (*Hooks, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	h := &Hooks{
		opt: o, table: docs.New[Hook](Kind, o.Store), turns: fairshare.NewTurns(sendTurns, sendAtOnce, sendOwn),
		changed: make(chan struct{}), serving: map[string]bool{}, pause: pauseOf,
	}
	dialer := net.Dialer{Timeout: 5 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err == nil && !probe.Permitted(at.Addr(), o.Allow, nil) {
			err = fmt.Errorf("%s is not a public address, and the operator does not allow it (webhook_networks): %w", at.Addr(), api.ErrForbidden)
		}
		return err
	}}
	h.http = &http.Client{
		Timeout:       sendTime,
		Transport:     &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true, TLSHandshakeTimeout: 5 * time.Second, MaxResponseHeaderBytes: 16 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return h, h.table.Load(o.Loaded)
}

// pauseOf returns the pause after a number of failed tries: 1 s, 4 s, 16 s, … 1 h.
func pauseOf(tries int) time.Duration { return min(time.Second<<(2*(tries-1)), maxPause) }

// Create registers a hook, which gets the events from now on. Only the returned hook has the secret. The hook belongs to
// an addon if addon is not "".
func (h *Hooks) Create(ctx context.Context, n api.NewWebhook, tenant api.Tenant, by string, addon api.AddonID) (api.Webhook, error) {
	if err := h.check(n); err != nil {
		return api.Webhook{}, err
	}
	_, newest, err := h.opt.Events(ctx, ^api.Revision(0))
	if err != nil {
		return api.Webhook{}, err
	}
	hook := Hook{Webhook: api.Webhook{
		ID: rand.Text()[:12], Tenant: tenant, URL: n.URL, Kinds: n.Kinds, Reasons: n.Reasons, Created: h.opt.Now().UTC(), By: by, Addon: addon,
	}, Sent: newest}
	secret := rand.Text()
	hook.Sealed, err = h.opt.Sealer.Seal(label(hook.ID), wire.Value{Data: map[string][]byte{"secret": []byte(secret)}})
	if err != nil {
		return api.Webhook{}, err
	}
	err = h.table.Update(ctx, hook.ID, func(Hook, bool) (Hook, error) { // updates are serialized
		own := 0
		for o := range h.table.Each() {
			if o.Tenant.Top() == tenant.Top() {
				own++
			}
		}
		if own >= maxOwn || h.table.Len() >= maxHooks {
			return hook, fmt.Errorf("tenant %q has %d webhooks, of at most %d, and all together %d of %d; delete some: %w", tenant.Top(), own, maxOwn, h.table.Len(), maxHooks, api.ErrConflict)
		}
		return hook, nil
	})
	if err != nil {
		return api.Webhook{}, err
	}
	h.Wake()
	hook.Secret = secret
	return hook.Webhook, nil
}

func label(id string) string { return "webhook " + id }

func (h *Hooks) check(n api.NewWebhook) error {
	u, err := url.Parse(n.URL)
	if err != nil || u.Host == "" || u.User != nil || len(n.URL) > 2048 {
		return fmt.Errorf("url %.200q is not https://host/path without a user: %w", n.URL, api.ErrInvalid)
	}
	at, err := netip.ParseAddr(u.Hostname())
	literal := err == nil
	if u.Scheme != "https" && (u.Scheme != "http" || !literal || !slices.ContainsFunc(h.opt.Allow, func(p netip.Prefix) bool { return p.Contains(at.Unmap()) })) {
		return fmt.Errorf("url %.200q: want https, or http to an address in the operator's webhook_networks: %w", n.URL, api.ErrInvalid)
	}
	if literal && !probe.Permitted(at, h.opt.Allow, nil) {
		return fmt.Errorf("url %.200q: %s is not a public address, and the operator does not allow it (webhook_networks): %w", n.URL, at, api.ErrInvalid)
	}
	for _, k := range n.Kinds {
		if !slices.Contains(api.EventKinds, k) {
			return fmt.Errorf("kind %.40q is none of %v: %w", k, api.EventKinds, api.ErrInvalid)
		}
	}
	return nil
}

// All returns the hooks, without secrets.
func (h *Hooks) All() []api.Webhook {
	all := []api.Webhook{}
	for _, o := range h.table.All() {
		all = append(all, o.Webhook)
	}
	return all
}

// Get returns a hook, without its secret.
func (h *Hooks) Get(id string) (api.Webhook, bool) {
	o, ok := h.table.Get(id)
	return o.Webhook, ok
}

// Delete deletes a hook.
func (h *Hooks) Delete(ctx context.Context, id string) error {
	err := h.table.Delete(ctx, id)
	h.Wake()
	return err
}

// Retry sends the dead letters of a hook once more, and the event that waits for its next try.
func (h *Hooks) Retry(ctx context.Context, id string) error {
	err := h.table.Update(ctx, id, func(o Hook, ok bool) (Hook, error) {
		if !ok {
			return o, fmt.Errorf("webhook %s: %w", id, api.ErrNotFound)
		}
		o.Retry, o.Next = true, time.Time{}
		return o, nil
	})
	h.Wake()
	return err
}

// Wake makes the hooks look for events. It does not block.
func (h *Hooks) Wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *Hooks) wakes() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// Run sends events until ctx ends.
func (h *Hooks) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		woken := h.wakes()
		for _, id := range h.table.Keys() {
			h.mu.Lock()
			begins := !h.serving[id]
			h.serving[id] = true
			h.mu.Unlock()
			if begins {
				all.Go(func() { h.serve(ctx, id) })
			}
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return nil
		}
	}
}

// serve sends the events of a hook until it is deleted.
func (h *Hooks) serve(ctx context.Context, id string) {
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.serving, id)
	}()
	var passed api.Revision // events up to it are none of the hook's
	for ctx.Err() == nil {
		woken := h.wakes()
		o, ok := h.table.Get(id)
		if !ok {
			return
		}
		var again <-chan time.Time
		if wait := o.Next.Sub(h.opt.Now()); wait > 0 {
			again = time.After(wait)
		} else if did, err := h.step(ctx, o, &passed); err != nil {
			if ctx.Err() == nil {
				h.opt.Log.Warn("webhook not served", "webhook", id, "err", err)
			}
			again = time.After(time.Minute)
		} else if did {
			continue
		}
		// Each look for events takes a turn of the core. Many events in a row cause one look.
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return
		}
		select {
		case <-woken:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// step sends a hook's next event, or its dead letters. It returns false if it has none.
func (h *Hooks) step(ctx context.Context, o Hook, passed *api.Revision) (did bool, err error) {
	if o.Retry {
		return true, h.resend(ctx, o)
	}
	events, newest, err := h.opt.Events(ctx, max(o.Sent, *passed))
	if err != nil {
		return false, err
	}
	for _, e := range events {
		if !o.wants(e) {
			continue
		}
		e, ok, err := h.opt.Shown(o.Webhook, e)
		if err != nil {
			return true, h.failed(ctx, o, e, err)
		}
		if !ok {
			continue
		}
		if err := h.send(ctx, o, e); err != nil {
			if ctx.Err() != nil {
				return false, err
			}
			return true, h.failed(ctx, o, e, err)
		}
		again := false
		err = h.update(ctx, o.ID, func(o *Hook) {
			again, o.Failing = o.Failing, false
			o.Sent, o.Tries, o.Next, o.Error, o.Delivered = e.Seq, 0, time.Time{}, "", o.Delivered+1
		})
		if again && err == nil {
			h.note(ctx, o, api.ReasonNone, "delivers events again")
		}
		return true, err
	}
	*passed = newest
	return false, nil
}

// wants reports whether the hook sends an event. None sends events about deliveries, because a hook that fails would
// cause events for others that fail, without an end.
func (o Hook) wants(e api.Event) bool {
	if e.Kind == Kind && e.Reason != api.ReasonAccess {
		return false
	}
	return (len(o.Kinds) == 0 || slices.Contains(o.Kinds, e.Kind)) && (len(o.Reasons) == 0 || slices.Contains(o.Reasons, e.Reason))
}

func (h *Hooks) update(ctx context.Context, id string, change func(*Hook)) error {
	err := h.table.Update(ctx, id, func(o Hook, ok bool) (Hook, error) {
		if !ok {
			return o, api.ErrNotFound // deleted meanwhile
		}
		o.Dead = slices.Clone(o.Dead) // documents are shared
		change(&o)
		return o, nil
	})
	if errors.Is(err, api.ErrNotFound) {
		return nil
	}
	return err
}

// failed records a failed try. After the last one, the event is a dead letter.
func (h *Hooks) failed(ctx context.Context, o Hook, e api.Event, cause error) error {
	text := shorten(cause.Error())
	var begins, dead bool
	err := h.update(ctx, o.ID, func(o *Hook) {
		o.Tries++
		o.Error, o.Next = text, h.opt.Now().Add(h.pause(o.Tries))
		begins, dead = o.Tries == noteTries && !o.Failing, o.Tries >= maxTries
		o.Failing = o.Failing || begins || dead
		if dead {
			o.Dead = append(o.Dead, api.DeadLetter{Event: e, Error: text, Time: h.opt.Now().UTC()})
			if extra := len(o.Dead) - maxDead; extra > 0 {
				o.Dead, o.Lost = o.Dead[extra:], o.Lost+extra
			}
			o.Sent, o.Tries = e.Seq, 0
		}
	})
	switch {
	case err != nil:
		return err
	case dead:
		h.note(ctx, o, api.ReasonUndelivered, fmt.Sprintf("event %d is a dead letter after %d tries: %s", e.Seq, maxTries, text))
	case begins:
		h.note(ctx, o, api.ReasonUndelivered, fmt.Sprintf("event %d was not delivered in %d tries: %s", e.Seq, noteTries, text))
	}
	return nil
}

// note stores an event about the hook's deliveries. One that is lost in a crash is only missing: the hook has its state.
func (h *Hooks) note(ctx context.Context, o Hook, r api.Reason, text string) {
	if err := h.opt.Note(ctx, o.Webhook, r, text); err != nil && ctx.Err() == nil {
		h.opt.Log.Warn("event of a webhook not stored", "webhook", o.ID, "what", text, "err", err)
	}
}

// resend sends each dead letter once.
func (h *Hooks) resend(ctx context.Context, o Hook) error {
	sent := map[api.Revision]bool{}
	var cause error
	for _, d := range o.Dead {
		e, ok, err := h.opt.Shown(o.Webhook, d.Event)
		if err == nil && ok {
			err = h.send(ctx, o, e)
		}
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			cause = err
			break // the receiver is still down
		}
		sent[d.Event.Seq] = true
	}
	return h.update(ctx, o.ID, func(o *Hook) {
		o.Retry = false
		o.Dead = slices.DeleteFunc(o.Dead, func(d api.DeadLetter) bool { return sent[d.Event.Seq] })
		o.Delivered += len(sent)
		if cause != nil {
			o.Error = shorten(cause.Error())
		}
	})
}

func shorten(text string) string {
	if len(text) > maxError {
		text = text[:maxError]
	}
	return text
}

// Signature returns the value of the header Treeline-Signature for a body sent at a time.
func Signature(secret string, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(mac, t+".")
	_, _ = mac.Write(body)
	return "t=" + t + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

// send makes one try.
func (h *Hooks) send(ctx context.Context, o Hook, e api.Event) error {
	leave, err := h.turns.Enter(ctx, h.opt.Now(), []string{string(o.Tenant.Top())}, false)
	if err != nil {
		return err
	}
	defer leave()
	v, err := h.opt.Sealer.Open(label(o.ID), o.Sealed)
	if err != nil {
		return fmt.Errorf("read the secret of webhook %s: %w", o.ID, err)
	}
	body, err := json.Marshal(api.WebhookDelivery{Webhook: o.ID, Event: e})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "treeline")
	req.Header.Set("Treeline-Delivery", o.ID+"-"+strconv.FormatUint(uint64(e.Seq), 10))
	req.Header.Set("Treeline-Signature", Signature(string(v.Data["secret"]), h.opt.Now(), body))
	resp, err := h.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL, which may have a token
		}
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10))
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("the receiver answered with status %d", resp.StatusCode)
	}
	return nil
}
