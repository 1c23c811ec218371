// Package interest keeps who wants what of the network, and which records each
// holds because of it: a cluster's core for its nodes, the root's for its clusters.
// It is pure. What a want leads to, and what a record says, its owner knows.
//
//	b := interest.New[api.NodeID]()
//	if b.Add("n1", want, now.Add(lease)) {
//		b.Answer("n1", want, interest.RouteOf("acme/shop.prod.web.prod"))
//	}
//	changes, _ := b.Flush("n1", api.PartSize, view)
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
)

// Kind is a kind of record.
type Kind uint8

// The kinds of records. Nothing is the zero Key's: a want without an answer.
const (
	Nothing Kind = iota
	Route
	Source
	Peer
	Refused
)

// Key names a record.
type Key struct {
	Kind    Kind
	Service api.ServiceID
	Address netip.Addr
	Peer    api.PeerKey
	Refusal api.Refusal
}

// RouteOf names a service's route.
func RouteOf(s api.ServiceID) Key { return Key{Kind: Route, Service: s} }

// SourceOf names what is known of an instance's address.
func SourceOf(a netip.Addr) Key { return Key{Kind: Source, Address: a} }

// PeerOf names a node.
func PeerOf(k api.PeerKey) Key { return Key{Kind: Peer, Peer: k} }

// RefusalOf is the refusal itself.
func RefusalOf(w api.Want, denied bool) Key {
	return Key{Kind: Refused, Refusal: api.Refusal{Want: w, Denied: denied}}
}

// Name is the record's name, by which spans are cut.
func (k Key) Name() string {
	switch k.Kind {
	case Route:
		return api.RouteName(k.Service)
	case Source:
		return api.SourceName(k.Address)
	case Peer:
		return api.PeerName(k.Peer)
	case Refused:
		return api.RefusalName(k.Refusal.Want)
	}
	return ""
}

// CompareKeys orders keys.
func CompareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Service, b.Service), a.Address.Compare(b.Address),
		slices.Compare(a.Peer[:], b.Peer[:]), CompareWants(a.Refusal.Want, b.Refusal.Want), bit(a.Refusal.Denied)-bit(b.Refusal.Denied))
}

func bit(is bool) int {
	if is {
		return 1
	}
	return 0
}

// CompareWants orders wants.
func CompareWants(a, b api.Want) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Service, b.Service), cmp.Compare(a.For, b.For))
}

// View says what records say. ok is false for one that is not there: whoever
// holds it is told that it is gone.
type View interface {
	Route(api.ServiceID) (r api.Route, ok bool)
	Source(netip.Addr) (s api.Source, ok bool)
	Peer(api.PeerKey) (p api.Peer, ok bool)
}

// Ref is one want of one subscriber.
type Ref[S cmp.Ordered] struct {
	Sub  S
	Want api.Want
}

// Book keeps the wants and holdings of subscribers. Its methods cost what they
// touch; a want is found by its subject (the want without For) and by its For.
type Book[S cmp.Ordered] struct {
	subs     map[S]*sub
	subjects map[api.Want]map[Ref[S]]bool
	callers  map[api.ServiceID]map[Ref[S]]bool
	holders  map[Key]*holders[S]
	dirty    map[S]bool
}

// holders are those who hold a record, or are to be told it.
type holders[S cmp.Ordered] struct {
	subs map[S]bool
	rev  uint64 // as it was told last; 0: it says something new, or was not told
}

type sub struct {
	wants   map[api.Want]*want
	open    int // wants without an answer
	held    map[Key]*holding
	digest  api.Digest // of what it was sent
	idle    api.Digest // of what of that no want leads to any more
	changed map[Key]bool
	used    ordered[Key] // of changed what it holds; some may be told already
	fresh   ordered[Key] // and what is new to it
	run     *Run[Key]    // through held, while it is told part by part
}

type want struct {
	until time.Time
	key   Key
}

// holding is a record that wants lead to, or that was sent and not yet taken away.
type holding struct {
	wants int
	sent  bool
	said  api.Digest
}

// New is an empty book.
func New[S cmp.Ordered]() *Book[S] {
	return &Book[S]{
		subs: map[S]*sub{}, subjects: map[api.Want]map[Ref[S]]bool{}, callers: map[api.ServiceID]map[Ref[S]]bool{},
		holders: map[Key]*holders[S]{}, dirty: map[S]bool{},
	}
}

// subject is what the want is about. Names differ in case only where they are
// compared, for resolvers spell them as they like.
func subject(w api.Want) api.Want {
	return api.Want{Address: w.Address, Service: api.ServiceID(strings.ToLower(string(w.Service)))}
}

// Names finds services by names in any case.
type Names map[string]map[api.ServiceID]bool

// Add makes a service known; Remove takes it away.
func (n Names) Add(id api.ServiceID) { put(n, strings.ToLower(string(id)), id) }

// Remove makes a service unknown.
func (n Names) Remove(id api.ServiceID) { take(n, strings.ToLower(string(id)), id) }

// Find is the service that is meant: the one that is spelt so, or else the only
// one that differs in case alone.
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

// Add notes a want until a moment, or renews it, and reports whether it is new.
func (b *Book[S]) Add(s S, w api.Want, until time.Time) bool {
	u := b.subs[s]
	if u == nil {
		u = &sub{wants: map[api.Want]*want{}, held: map[Key]*holding{}, changed: map[Key]bool{}}
		b.subs[s] = u
	}
	if have := u.wants[w]; have != nil {
		have.until = until
		return false
	}
	u.wants[w] = &want{until: until}
	u.open++
	r := Ref[S]{s, w}
	put(b.subjects, subject(w), r)
	if w.For != "" {
		put(b.callers, w.For, r)
	}
	return true
}

// Drop forgets a want, and reports whether there was one.
func (b *Book[S]) Drop(s S, w api.Want) bool {
	u := b.subs[s]
	if u == nil || u.wants[w] == nil {
		return false
	}
	b.Answer(s, w, Key{})
	u.open--
	delete(u.wants, w)
	r := Ref[S]{s, w}
	take(b.subjects, subject(w), r)
	if w.For != "" {
		take(b.callers, w.For, r)
	}
	return true
}

// Forget drops all that the subscriber wants and holds, without a word to it.
func (b *Book[S]) Forget(s S) {
	for _, w := range b.Wants(s) {
		b.Drop(s, w)
	}
	if u := b.subs[s]; u != nil {
		for k := range u.held {
			b.unheld(k, s)
		}
	}
	delete(b.subs, s)
	delete(b.dirty, s)
}

// Lost notes that the subscriber holds nothing any more of what it was sent.
func (b *Book[S]) Lost(s S) {
	u := b.subs[s]
	if u == nil {
		return
	}
	u.digest, u.idle, u.run = 0, 0, nil
	u.unchange()
	for k, h := range u.held {
		if h.sent = false; h.wants == 0 {
			delete(u.held, k)
			b.unheld(k, s)
			continue
		}
		u.change(k)
		b.dirty[s] = true
	}
}

// Subscribers lists, in order, all that want or hold something.
func (b *Book[S]) Subscribers() []S {
	out := make([]S, 0, len(b.subs))
	for s := range b.subs {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// EachWant goes through what a subscriber wants, in no order.
func (b *Book[S]) EachWant(s S) iter.Seq[api.Want] {
	u := b.subs[s]
	if u == nil {
		return func(func(api.Want) bool) {}
	}
	return maps.Keys(u.wants)
}

// Wants lists what a subscriber wants, in order.
func (b *Book[S]) Wants(s S) []api.Want {
	u := b.subs[s]
	if u == nil {
		return nil
	}
	out := make([]api.Want, 0, len(u.wants))
	for w := range u.wants {
		out = append(out, w)
	}
	slices.SortFunc(out, CompareWants)
	return out
}

// Has reports whether the subscriber wants w; Count how much it wants.
func (b *Book[S]) Has(s S, w api.Want) bool { u := b.subs[s]; return u != nil && u.wants[w] != nil }

// Count is how many wants the subscriber has.
func (b *Book[S]) Count(s S) int {
	if u := b.subs[s]; u != nil {
		return len(u.wants)
	}
	return 0
}

// Open is how many wants of the subscriber have no answer.
func (b *Book[S]) Open(s S) int {
	if u := b.subs[s]; u != nil {
		return u.open
	}
	return 0
}

// Total is how many wants there are in all, and how many of them have no answer.
func (b *Book[S]) Total() (wants, open int) {
	for _, u := range b.subs {
		wants, open = wants+len(u.wants), open+u.open
	}
	return wants, open
}

// Expired lists wants whose time is over, in order, and when the next one's is.
func (b *Book[S]) Expired(s S, now time.Time) (over []api.Want, next time.Time) {
	for _, w := range b.Wants(s) {
		switch until := b.subs[s].wants[w].until; {
		case !until.After(now):
			over = append(over, w)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	return over, next
}

// Of lists the wants with the subject, whoever they are on behalf of.
func (b *Book[S]) Of(w api.Want) []Ref[S] { return refs(b.subjects[subject(w)]) }

// CalledBy lists the wants on behalf of a service.
func (b *Book[S]) CalledBy(s api.ServiceID) []Ref[S] { return refs(b.callers[s]) }

// Answer says what a want leads to: a record, or nothing yet.
func (b *Book[S]) Answer(s S, w api.Want, k Key) {
	u := b.subs[s]
	if u == nil || u.wants[w] == nil || u.wants[w].key == k {
		return
	}
	old := u.wants[w].key
	u.wants[w].key = k
	if old == (Key{}) {
		u.open--
	} else {
		h := u.held[old]
		u.count(h)
		h.wants--
		if u.count(h); h.wants == 0 {
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
		h = &holding{}
		u.held[k] = h
		if b.holders[k] == nil {
			b.holders[k] = &holders[S]{subs: map[S]bool{}}
		}
		b.holders[k].subs[s] = true
		u.run.Add(k)
	}
	u.count(h)
	h.wants++
	u.count(h)
	u.change(k)
	b.dirty[s] = true
}

// AnswerOf is what a want leads to.
func (b *Book[S]) AnswerOf(s S, w api.Want) Key {
	if u := b.subs[s]; u != nil && u.wants[w] != nil {
		return u.wants[w].key
	}
	return Key{}
}

// Changed has a record told again, with a new revision, to all that hold it, but
// those who know.
func (b *Book[S]) Changed(k Key, know ...S) {
	h := b.holders[k]
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

// Rev is the revision of a record that is told: next's when it says something new.
// It is forgotten with the last who holds the record; what nobody holds has none, 0.
func (b *Book[S]) Rev(k Key, next func() uint64) uint64 {
	h := b.holders[k]
	if h == nil {
		return 0
	}
	if h.rev == 0 {
		h.rev = next()
	}
	return h.rev
}

// unheld notes that a subscriber holds a record no more.
func (b *Book[S]) unheld(k Key, s S) {
	if h := b.holders[k]; h != nil {
		if delete(h.subs, s); len(h.subs) == 0 {
			delete(b.holders, k)
		}
	}
}

// Dirty lists, in order, the subscribers that have something to be told.
func (b *Book[S]) Dirty() []S {
	out := make([]S, 0, len(b.dirty))
	for s := range b.dirty {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// Held is the digest of what the subscriber holds when it has taken in all that
// was flushed.
func (b *Book[S]) Held(s S) api.Digest {
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
	slices.SortFunc(out, func(a, b Ref[S]) int { return cmp.Or(cmp.Compare(a.Sub, b.Sub), CompareWants(a.Want, b.Want)) })
	return out
}
