package interest

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Requests are the subscriptions that one side has at the other, and which changes of them it
// has not sent yet. The zero Requests are none.
type Requests struct {
	all    map[wire.Subscription]bool
	unsent map[wire.Subscription]bool // subscribed or unsubscribed since the last message
	digest api.Digest
	cursor Cursor[wire.Subscription] // through all, during a resync
}

// Set subscribes or unsubscribes, and reports whether that changes something.
func (r *Requests) Set(w wire.Subscription, on bool) bool {
	if r.all[w] == on {
		return false
	}
	if r.all == nil {
		r.all, r.unsent = map[wire.Subscription]bool{}, map[wire.Subscription]bool{}
	}
	r.digest = r.digest.Toggle(w.Digest())
	if r.unsent[w] {
		delete(r.unsent, w) // the other side does not know of the opposite
	} else {
		r.unsent[w] = true
	}
	if r.all[w] = on; on {
		r.cursor.Add(w)
	} else {
		delete(r.all, w)
	}
	return true
}

// Has reports whether there is a subscription.
func (r *Requests) Has(w wire.Subscription) bool { return r.all[w] }

// List returns all subscriptions, in order.
func (r *Requests) List() []wire.Subscription { return inOrder(r.all) }

// Digest returns the digest of all subscriptions.
func (r *Requests) Digest() api.Digest { return r.digest }

// Pending reports whether there are changes to send.
func (r *Requests) Pending() bool { return len(r.unsent) > 0 }

// Changes returns the changes to send, up to the size of one message.
func (r *Requests) Changes() (subscribe, unsubscribe []wire.Subscription) {
	var vol wire.Volume
	for _, w := range inOrder(r.unsent) {
		if vol.Bytes >= wire.MaxPart {
			break
		}
		if vol.Subscription(w); r.all[w] {
			subscribe = append(subscribe, w)
		} else {
			unsubscribe = append(unsubscribe, w)
		}
		delete(r.unsent, w)
	}
	return subscribe, unsubscribe
}

// BeginResync makes Part, from the first name on, send what has changed so far.
func (r *Requests) BeginResync() {
	clear(r.unsent)
	r.cursor.Reset()
}

// Part returns the subscriptions after a name, as far as there is room in a part that has vol
// already, and the span of names that they fill.
func (r *Requests) Part(after string, vol *wire.Volume) (part []wire.Subscription, of wire.Span) {
	of = r.cursor.Part(after, maps.Keys(r.all), func(w wire.Subscription) bool {
		if r.all[w] {
			part = append(part, w)
			vol.Subscription(w)
		}
		return vol.Bytes < wire.MaxPart
	})
	return part, of
}

func inOrder[V any](m map[wire.Subscription]V) []wire.Subscription {
	if len(m) == 0 {
		return nil // it is called for each message
	}
	return slices.SortedFunc(maps.Keys(m), wire.Subscription.Compare)
}
