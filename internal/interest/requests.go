package interest

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Requests has the subscriptions of a subscriber, and the changes that it has not sent yet. The
// zero Requests is empty.
type Requests struct {
	all    map[wire.Subscription]bool
	unsent map[wire.Subscription]bool // subscribed or unsubscribed since the last message
	digest api.Digest
	cursor Cursor[wire.Subscription] // through all, during a resync
}

// Set subscribes or unsubscribes, and reports whether it changed something.
func (r *Requests) Set(w wire.Subscription, on bool) bool {
	if r.all[w] == on {
		return false
	}
	if r.all == nil {
		r.all, r.unsent = map[wire.Subscription]bool{}, map[wire.Subscription]bool{}
	}
	r.digest = r.digest.Toggle(w.Digest())
	if r.unsent[w] {
		delete(r.unsent, w) // the opposite change was not sent yet
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

// BeginResync moves the unsent changes to Part, which starts at the first name.
func (r *Requests) BeginResync() {
	clear(r.unsent)
	r.cursor.Reset()
}

// Part returns the subscriptions after a name, until vol, the size of the message so far, reaches
// wire.MaxPart, and the span of names that they fill.
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
		return nil // saves an allocation for each message
	}
	return slices.SortedFunc(maps.Keys(m), wire.Subscription.Compare)
}
