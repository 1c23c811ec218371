// Package interest is the protocol with which one tier subscribes to the network resources of
// another, like delta xDS: a node at its cluster, a cluster at the root, and the root at a
// cluster. Subscriptions is the publisher's side, Requests and Replica are the subscriber's side,
// and Resync, with a Cursor on both sides, repairs losses. The package does no I/O. The owner of
// Subscriptions decides which resource answers a subscription (Answer) and provides the content
// (View).
//
//	b := interest.New[api.NodeID]()
//	if b.Subscribe("n1", subscription, now.Add(lease)) {
//		b.Answer("n1", subscription, interest.RouteOf("acme/shop.prod.web.prod"))
//	}
//	changes, _ := b.Flush("n1", wire.MaxPart, view)
package interest

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// View returns the content of resources. If ok is false, the resource does not exist and is
// removed from all subscribers.
type View interface {
	Route(api.ServiceID) (r api.Route, ok bool)
	Source(netip.Addr) (s wire.Source, ok bool)
	Peer(api.PeerKey) (p api.Peer, ok bool)
}

// Ref is one subscription of one subscriber.
type Ref[S cmp.Ordered] struct {
	Subscriber   S
	Subscription wire.Subscription
}

// Subscriptions has the subscriptions of all subscribers and the resources that these hold.
// Subscriptions are indexed by their subject (without For) and by For.
type Subscriptions[S cmp.Ordered] struct {
	subs      map[S]*subscriber
	subjects  map[wire.Subscription]map[Ref[S]]bool
	callers   map[api.ServiceID]map[Ref[S]]bool
	resources map[Key]*subscribers[S]
	dirty     map[S]bool
}

// subscribers are those that hold a resource or will receive it.
type subscribers[S cmp.Ordered] struct {
	subs map[S]bool
	rev  uint64 // the version that was sent last; 0: changed since, or never sent
}

type subscriber struct {
	subscriptions map[wire.Subscription]*subscription
	digest        api.Digest // of the subscriptions
	open          int        // subscriptions without an answer
	held          map[Key]*resource
	sent          api.Digest // of the resources that were sent to it
	idle          api.Digest // of those in sent that no subscription leads to any more
	changed       map[Key]bool
	used          ordered[Key] // the changed keys that it holds; may have keys that left changed
	fresh         ordered[Key] // likewise the changed keys that it does not hold

	cursor  Cursor[Key]               // through held, during a resync
	listing Cursor[wire.Subscription] // through subscriptions, while the subscriber lists them in parts
}

// nobody is an empty subscriber, for reading only.
var nobody = &subscriber{}

type subscription struct {
	until time.Time
	key   Key
}

// resource is what a subscription leads to, or what was sent and not yet removed.
type resource struct {
	subscriptions int
	sent          bool
	version       api.Digest
}

// New returns Subscriptions without subscribers.
func New[S cmp.Ordered]() *Subscriptions[S] {
	return &Subscriptions[S]{
		subs: map[S]*subscriber{}, subjects: map[wire.Subscription]map[Ref[S]]bool{}, callers: map[api.ServiceID]map[Ref[S]]bool{},
		resources: map[Key]*subscribers[S]{}, dirty: map[S]bool{},
	}
}

// subject returns the subscription without For. Names are in lower case, because resolvers
// change case.
func subject(w wire.Subscription) wire.Subscription {
	return wire.Subscription{Address: w.Address, Service: api.ServiceID(strings.ToLower(string(w.Service)))}
}

// of returns a subscriber, possibly nobody, for reading.
func (b *Subscriptions[S]) of(s S) *subscriber {
	if u := b.subs[s]; u != nil {
		return u
	}
	return nobody
}

// Subscribe adds or renews a subscription until a time, and reports whether it is new.
func (b *Subscriptions[S]) Subscribe(s S, w wire.Subscription, until time.Time) bool {
	u := b.subs[s]
	if u == nil {
		u = &subscriber{subscriptions: map[wire.Subscription]*subscription{}, held: map[Key]*resource{}, changed: map[Key]bool{}}
		b.subs[s] = u
	}
	if have := u.subscriptions[w]; have != nil {
		have.until = until
		return false
	}
	u.subscriptions[w] = &subscription{until: until}
	u.digest = u.digest.Toggle(w.Digest())
	u.listing.Add(w)
	u.open++
	r := Ref[S]{s, w}
	put(b.subjects, subject(w), r)
	if w.For != "" {
		put(b.callers, w.For, r)
	}
	return true
}

// Unsubscribe removes a subscription, and reports whether it existed.
func (b *Subscriptions[S]) Unsubscribe(s S, w wire.Subscription) bool {
	if !b.Has(s, w) {
		return false
	}
	b.Answer(s, w, Key{})
	u := b.subs[s]
	u.open--
	u.digest = u.digest.Toggle(w.Digest())
	delete(u.subscriptions, w)
	r := Ref[S]{s, w}
	take(b.subjects, subject(w), r)
	if w.For != "" {
		take(b.callers, w.For, r)
	}
	return true
}

// Absent returns the subscriptions in a span of names that are not in listed, the subscriber's
// complete list for the span. The caller unsubscribes them. The cost of consecutive spans is
// proportional to their content.
func (b *Subscriptions[S]) Absent(s S, of wire.Span, listed []wire.Subscription) []wire.Subscription {
	u := b.subs[s]
	if u == nil {
		return nil
	}
	set := make(map[wire.Subscription]bool, len(listed))
	for _, w := range listed {
		set[w] = true
	}
	return u.listing.Absent(of, maps.Keys(u.subscriptions), set)
}

// Remove removes the subscriber with all its subscriptions, without sending anything.
func (b *Subscriptions[S]) Remove(s S) {
	for _, w := range b.List(s) {
		b.Unsubscribe(s, w)
	}
	for k := range b.of(s).held {
		b.removeSubscriber(k, s)
	}
	delete(b.subs, s)
	delete(b.dirty, s)
}

// Reset records that the subscriber lost everything that it was sent.
func (b *Subscriptions[S]) Reset(s S) {
	u := b.subs[s]
	if u == nil {
		return
	}
	u.sent, u.idle = 0, 0
	u.cursor.Reset()
	u.clearChanges()
	for k, h := range u.held {
		if h.sent = false; h.subscriptions == 0 {
			delete(u.held, k)
			b.removeSubscriber(k, s)
			continue
		}
		b.change(s, k)
	}
}

// Subscribers returns, in order, the subscribers that have subscriptions or hold resources.
func (b *Subscriptions[S]) Subscribers() []S { return step.Keys(b.subs) }

// List returns the subscriptions of a subscriber, in order.
func (b *Subscriptions[S]) List(s S) []wire.Subscription { return inOrder(b.of(s).subscriptions) }

// Has reports whether the subscriber has the subscription.
func (b *Subscriptions[S]) Has(s S, w wire.Subscription) bool {
	return b.of(s).subscriptions[w] != nil
}

// Digest returns the digest of the subscriber's subscriptions.
func (b *Subscriptions[S]) Digest(s S) api.Digest { return b.of(s).digest }

// Count returns the number of the subscriber's subscriptions.
func (b *Subscriptions[S]) Count(s S) int { return len(b.of(s).subscriptions) }

// Open returns the number of the subscriber's subscriptions without an answer.
func (b *Subscriptions[S]) Open(s S) int { return b.of(s).open }

// Total returns the number of all subscriptions, and of those without an answer.
func (b *Subscriptions[S]) Total() (all, open int) {
	for _, u := range b.subs {
		all, open = all+len(u.subscriptions), open+u.open
	}
	return all, open
}

// Expired returns, in order, the subscriptions that have expired, and when the next one expires.
func (b *Subscriptions[S]) Expired(s S, now time.Time) (over []wire.Subscription, next time.Time) {
	for _, w := range b.List(s) {
		switch until := b.subs[s].subscriptions[w].until; {
		case !until.After(now):
			over = append(over, w)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	return over, next
}

// About returns the subscriptions with the same subject.
func (b *Subscriptions[S]) About(w wire.Subscription) []Ref[S] { return refs(b.subjects[subject(w)]) }

// For returns the subscriptions on behalf of a service.
func (b *Subscriptions[S]) For(s api.ServiceID) []Ref[S] { return refs(b.callers[s]) }

func refs[S cmp.Ordered](m map[Ref[S]]bool) []Ref[S] {
	return slices.SortedFunc(maps.Keys(m), func(a, b Ref[S]) int {
		return cmp.Or(cmp.Compare(a.Subscriber, b.Subscriber), a.Subscription.Compare(b.Subscription))
	})
}

// Answer sets the resource that a subscription leads to; the zero Key: none yet.
func (b *Subscriptions[S]) Answer(s S, w wire.Subscription, k Key) {
	u := b.of(s)
	if !b.Has(s, w) || u.subscriptions[w].key == k {
		return
	}
	old := u.subscriptions[w].key
	u.subscriptions[w].key = k
	if old == (Key{}) {
		u.open--
	} else if u.addReferences(u.held[old], -1); u.held[old].subscriptions == 0 {
		b.change(s, old)
	}
	if k == (Key{}) {
		u.open++
		return
	}
	if u.held[k] == nil {
		u.held[k] = &resource{}
		if b.resources[k] == nil {
			b.resources[k] = &subscribers[S]{subs: map[S]bool{}}
		}
		b.resources[k].subs[s] = true
		u.cursor.Add(k)
	}
	u.addReferences(u.held[k], +1)
	b.change(s, k)
}

// AnswerOf returns the resource that a subscription leads to, or the zero Key.
func (b *Subscriptions[S]) AnswerOf(s S, w wire.Subscription) Key {
	if b.Has(s, w) {
		return b.subs[s].subscriptions[w].key
	}
	return Key{}
}

// Changed marks a resource as changed, with a new version, for all its subscribers except those
// in except, which have the change already.
func (b *Subscriptions[S]) Changed(k Key, except ...S) {
	h := b.resources[k]
	if h == nil {
		return
	}
	h.rev = 0
	for s := range h.subs {
		if !slices.Contains(except, s) {
			b.change(s, k)
		}
	}
}

// Rev returns the version of a resource. If its content changed, next provides a new version. A
// resource without subscribers has version 0.
func (b *Subscriptions[S]) Rev(k Key, next func() uint64) uint64 {
	h := b.resources[k]
	if h == nil {
		return 0
	}
	if h.rev == 0 {
		h.rev = next()
	}
	return h.rev
}

// removeSubscriber removes a subscriber of a resource.
func (b *Subscriptions[S]) removeSubscriber(k Key, s S) {
	if h := b.resources[k]; h != nil {
		if delete(h.subs, s); len(h.subs) == 0 {
			delete(b.resources, k)
		}
	}
}

// Dirty returns, in order, the subscribers with changes to send.
func (b *Subscriptions[S]) Dirty() []S { return step.Keys(b.dirty) }

// Held returns the digest of what the subscriber holds once it has applied everything flushed.
func (b *Subscriptions[S]) Held(s S) api.Digest { return b.of(s).sent }
