// Package interest tracks the subscriptions to network resources and what each subscriber
// holds, in the manner of delta xDS: a cluster's core for its nodes, the root's for its
// clusters. It is pure. Its owner knows what a subscription (wire.Want) leads to and the
// content of each resource.
//
//	b := interest.New[api.NodeID]()
//	if b.Add("n1", want, now.Add(lease)) {
//		b.Answer("n1", want, interest.RouteOf("acme/shop.prod.web.prod"))
//	}
//	changes, _ := b.Flush("n1", wire.MaxPart, view)
package interest

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Kind is the type of a resource.
type Kind uint8

// The types of resources. Nothing is that of the zero Key: a subscription without an answer.
const (
	None Kind = iota
	Route
	Source
	Peer
	Refused
)

// Key names a resource.
type Key struct {
	Kind    Kind
	Service api.ServiceID
	Address netip.Addr
	Peer    api.PeerKey
	Refusal wire.Refusal
}

// RouteOf returns the key of a service's route.
func RouteOf(s api.ServiceID) Key { return Key{Kind: Route, Service: s} }

// SourceOf returns the key of an instance's address.
func SourceOf(a netip.Addr) Key { return Key{Kind: Source, Address: a} }

// PeerOf returns the key of a node.
func PeerOf(k api.PeerKey) Key { return Key{Kind: Peer, Peer: k} }

// RefusalOf returns the key of the refusal of a subscription.
func RefusalOf(w wire.Subscription, denied bool) Key {
	return Key{Kind: Refused, Refusal: wire.Refusal{Subscription: w, Denied: denied}}
}

// Name returns the resource's name, by which spans are ordered.
func (k Key) Name() string {
	switch k.Kind {
	case Route:
		return wire.RouteName(k.Service)
	case Source:
		return wire.SourceName(k.Address)
	case Peer:
		return wire.PeerName(k.Peer)
	case Refused:
		return wire.RefusalName(k.Refusal.Subscription)
	}
	return ""
}

// CompareKeys orders keys.
func CompareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Service, b.Service), a.Address.Compare(b.Address),
		slices.Compare(a.Peer[:], b.Peer[:]), CompareSubscriptions(a.Refusal.Subscription, b.Refusal.Subscription), bit(a.Refusal.Denied)-bit(b.Refusal.Denied))
}

func bit(is bool) int {
	if is {
		return 1
	}
	return 0
}

// CompareWants orders wants.
func CompareSubscriptions(a, b wire.Subscription) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Service, b.Service), cmp.Compare(a.For, b.For))
}

// View returns the content of resources. ok is false for one that does not exist: it is
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

// Book has the subscriptions of all subscribers and what they hold. Its methods cost what they
// touch. Subscriptions are indexed by their subject (the Want without For) and by For.
type Subscriptions[S cmp.Ordered] struct {
	subs      map[S]*subscriber
	subjects  map[wire.Subscription]map[Ref[S]]bool
	callers   map[api.ServiceID]map[Ref[S]]bool
	resources map[Key]*subscribers[S]
	dirty     map[S]bool
}

// holders are the subscribers that hold a resource or will get it.
type subscribers[S cmp.Ordered] struct {
	subs map[S]bool
	rev  uint64 // as it was told last; 0: it says something new, or was not told
}

type subscriber struct {
	subscriptions map[wire.Subscription]*subscription
	open          int // wants without an answer
	held          map[Key]*resource
	digest        api.Digest // of what it was sent
	idle          api.Digest // of what of that no want leads to any more
	changed       map[Key]bool
	used          ordered[Key] // of changed what it holds; some may be told already
	fresh         ordered[Key] // and what is new to it
	run           *Cursor[Key] // through held, while it is told part by part
}

type subscription struct {
	until time.Time
	key   Key
}

// holding is a resource that a subscription leads to, or that was sent and not yet removed.
type resource struct {
	subscriptions int
	sent          bool
	version       api.Digest
}

// New makes an empty book.
func New[S cmp.Ordered]() *Subscriptions[S] {
	return &Subscriptions[S]{
		subs: map[S]*subscriber{}, subjects: map[wire.Subscription]map[Ref[S]]bool{}, callers: map[api.ServiceID]map[Ref[S]]bool{},
		resources: map[Key]*subscribers[S]{}, dirty: map[S]bool{},
	}
}

// subject returns what a subscription is about. Names are folded to lower case, because
// resolvers change case.
func subject(w wire.Subscription) wire.Subscription {
	return wire.Subscription{Address: w.Address, Service: api.ServiceID(strings.ToLower(string(w.Service)))}
}

// Names finds services by name, ignoring case.
type Names map[string]map[api.ServiceID]bool

// Add adds a service.
func (n Names) Add(id api.ServiceID) { put(n, strings.ToLower(string(id)), id) }

// Remove removes a service.
func (n Names) Remove(id api.ServiceID) { take(n, strings.ToLower(string(id)), id) }

// Find returns the service with exactly that spelling, or else the only one that differs in
// case.
func (n Names) Find(spelt api.ServiceID) (api.ServiceID, bool) {
	all := n[strings.ToLower(string(spelt))]
	if all[spelt] {
		return spelt, true
	}
	for id := range all {
		return id, len(all) == 1
	}
	return "", false
}

// Add adds or renews a subscription until a time, and reports whether it is new.
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
	u.open++
	r := Ref[S]{s, w}
	put(b.subjects, subject(w), r)
	if w.For != "" {
		put(b.callers, w.For, r)
	}
	return true
}

// Drop removes a subscription, and reports whether it existed.
func (b *Subscriptions[S]) Unsubscribe(s S, w wire.Subscription) bool {
	u := b.subs[s]
	if u == nil || u.subscriptions[w] == nil {
		return false
	}
	b.Answer(s, w, Key{})
	u.open--
	delete(u.subscriptions, w)
	r := Ref[S]{s, w}
	take(b.subjects, subject(w), r)
	if w.For != "" {
		take(b.callers, w.For, r)
	}
	return true
}

// Forget removes the subscriber with all its subscriptions, without sending anything.
func (b *Subscriptions[S]) Remove(s S) {
	for _, w := range b.List(s) {
		b.Unsubscribe(s, w)
	}
	if u := b.subs[s]; u != nil {
		for k := range u.held {
			b.unheld(k, s)
		}
	}
	delete(b.subs, s)
	delete(b.dirty, s)
}

// Lost records that the subscriber lost everything that it was sent.
func (b *Subscriptions[S]) Reset(s S) {
	u := b.subs[s]
	if u == nil {
		return
	}
	u.digest, u.idle, u.run = 0, 0, nil
	u.unchange()
	for k, h := range u.held {
		if h.sent = false; h.subscriptions == 0 {
			delete(u.held, k)
			b.unheld(k, s)
			continue
		}
		u.change(k)
		b.dirty[s] = true
	}
}

// Subscribers returns, in order, all that have subscriptions or hold something.
func (b *Subscriptions[S]) Subscribers() []S {
	out := make([]S, 0, len(b.subs))
	for s := range b.subs {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// EachWant yields the subscriptions of a subscriber, in no order.
func (b *Subscriptions[S]) Each(s S) iter.Seq[wire.Subscription] {
	u := b.subs[s]
	if u == nil {
		return func(func(wire.Subscription) bool) {}
	}
	return maps.Keys(u.subscriptions)
}

// Wants returns the subscriptions of a subscriber, in order.
func (b *Subscriptions[S]) List(s S) []wire.Subscription {
	u := b.subs[s]
	if u == nil {
		return nil
	}
	out := make([]wire.Subscription, 0, len(u.subscriptions))
	for w := range u.subscriptions {
		out = append(out, w)
	}
	slices.SortFunc(out, CompareSubscriptions)
	return out
}

// Has reports whether the subscriber has the subscription.
func (b *Subscriptions[S]) Has(s S, w wire.Subscription) bool {
	u := b.subs[s]
	return u != nil && u.subscriptions[w] != nil
}

// Count returns the number of the subscriber's subscriptions.
func (b *Subscriptions[S]) Count(s S) int {
	if u := b.subs[s]; u != nil {
		return len(u.subscriptions)
	}
	return 0
}

// Open returns the number of the subscriber's subscriptions without an answer.
func (b *Subscriptions[S]) Open(s S) int {
	if u := b.subs[s]; u != nil {
		return u.open
	}
	return 0
}

// Total returns the number of all subscriptions, and of those without an answer.
func (b *Subscriptions[S]) Total() (wants, open int) {
	for _, u := range b.subs {
		wants, open = wants+len(u.subscriptions), open+u.open
	}
	return wants, open
}

// Expired returns the subscriptions whose time is over, in order, and when the next one ends.
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

// Of returns the subscriptions with the same subject.
func (b *Subscriptions[S]) Of(w wire.Subscription) []Ref[S] { return refs(b.subjects[subject(w)]) }

// CalledBy returns the subscriptions on behalf of a service.
func (b *Subscriptions[S]) CalledBy(s api.ServiceID) []Ref[S] { return refs(b.callers[s]) }

// Answer sets what a subscription leads to: a resource, or nothing yet.
func (b *Subscriptions[S]) Answer(s S, w wire.Subscription, k Key) {
	u := b.subs[s]
	if u == nil || u.subscriptions[w] == nil || u.subscriptions[w].key == k {
		return
	}
	old := u.subscriptions[w].key
	u.subscriptions[w].key = k
	if old == (Key{}) {
		u.open--
	} else {
		h := u.held[old]
		u.count(h)
		h.subscriptions--
		if u.count(h); h.subscriptions == 0 {
			u.change(old)
			b.dirty[s] = true
		}
	}
	if k == (Key{}) {
		u.open++
		return
	}
	h := u.held[k]
	if h == nil {
		h = &resource{}
		u.held[k] = h
		if b.resources[k] == nil {
			b.resources[k] = &subscribers[S]{subs: map[S]bool{}}
		}
		b.resources[k].subs[s] = true
		u.run.Add(k)
	}
	u.count(h)
	h.subscriptions++
	u.count(h)
	u.change(k)
	b.dirty[s] = true
}

// AnswerOf returns what a subscription leads to.
func (b *Subscriptions[S]) AnswerOf(s S, w wire.Subscription) Key {
	if u := b.subs[s]; u != nil && u.subscriptions[w] != nil {
		return u.subscriptions[w].key
	}
	return Key{}
}

// Changed marks a resource as changed, with a new version, for all its holders except know.
func (b *Subscriptions[S]) Changed(k Key, know ...S) {
	h := b.resources[k]
	if h == nil {
		return
	}
	h.rev = 0
	for s := range h.subs {
		if !slices.Contains(know, s) {
			b.subs[s].change(k)
			b.dirty[s] = true
		}
	}
}

// Rev returns the version of a resource. If its content changed, next gives a new one. A
// resource without holders has version 0.
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

// unheld removes a holder of a resource.
func (b *Subscriptions[S]) unheld(k Key, s S) {
	if h := b.resources[k]; h != nil {
		if delete(h.subs, s); len(h.subs) == 0 {
			delete(b.resources, k)
		}
	}
}

// Dirty returns, in order, the subscribers with changes to send.
func (b *Subscriptions[S]) Dirty() []S {
	out := make([]S, 0, len(b.dirty))
	for s := range b.dirty {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// Held returns the digest of what the subscriber holds after it has taken everything that was
// flushed.
func (b *Subscriptions[S]) Held(s S) api.Digest {
	if u := b.subs[s]; u != nil {
		return u.digest
	}
	return 0
}

func put[K comparable, V comparable](m map[K]map[V]bool, k K, v V) {
	if m[k] == nil {
		m[k] = map[V]bool{}
	}
	m[k][v] = true
}

func take[K comparable, V comparable](m map[K]map[V]bool, k K, v V) {
	if delete(m[k], v); len(m[k]) == 0 {
		delete(m, k)
	}
}

func refs[S cmp.Ordered](m map[Ref[S]]bool) []Ref[S] {
	out := make([]Ref[S], 0, len(m))
	for r := range m {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Ref[S]) int {
		return cmp.Or(cmp.Compare(a.Subscriber, b.Subscriber), CompareSubscriptions(a.Subscription, b.Subscription))
	})
	return out
}
