package streams

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
)

// The bounds of streams, at the tier that requests them and at the tier that dials them.
var (
	requested = bound("429; when all are taken, the newest of the largest tenant ends")
	dialled   = bound("the requester gets " + requested.Beyond)

	requestedLong  = requested.Declare("logs and captures that are followed, and access to workloads, at the tier that requests them", 1024, 256, 64)
	requestedShort = requested.Declare("requests to the tier below, at the tier that sends them", 1024, 512, 128)
	dialledLong    = dialled.Declare("logs and captures that are followed, and access to workloads, at the cluster or node that dials", 256, 128, 64)
	dialledShort   = dialled.Declare("requests of the tier above, at the cluster or node that dials", 256, 128, 64)
	refusals       = bound("the requester gets no answer and waits for its deadline").Declare("refusals of streams that are being sent", 64, 32, 16)
)

func bound(beyond string) fairshare.Bound {
	return fairshare.Bound{Per: "tenant, then person", Beyond: beyond, Attack: "TestFollowedLogsLeaveRoomForOthers"}
}

// For returns StreamRequest.For: the topmost tenant, and a hash of the user's name, which hides the
// name from lower tiers.
func For(tenant api.Tenant, person string) string {
	sum := sha256.Sum256([]byte(person))
	return string(tenant.Top()) + " " + hex.EncodeToString(sum[:8])
}

// Holder returns the path of the holder of a stream. Without For (requests of earlier releases) the
// holder is the tenant of the instance.
func Holder(r wire.StreamRequest) []string {
	tenant, person, ok := strings.Cut(r.For, " ")
	if !ok {
		tenant = string(r.Instance.Tenant().Top())
	}
	return []string{tenant, person}
}

// long reports whether the stream may last until one side ends it.
func long(r wire.StreamRequest) bool {
	return r.Kind == "logs" || r.Kind == "loglines" || r.Kind == "net" && r.Instance != "" || r.Duplex()
}

// Places divides the streams that a tier dials among their holders.
type Places struct {
	long, short, refusals *fairshare.Pool
}

// NewPlaces makes the places of one tier.
func NewPlaces() *Places {
	return &Places{
		long: fairshare.NewPool(dialledLong, fairshare.Keep), short: fairshare.NewPool(dialledShort, fairshare.Keep),
		refusals: fairshare.NewPool(refusals, fairshare.Policy{Fixed: true}),
	}
}

// Take takes a place for the stream. The context ends when the place is evicted for another
// holder; release frees the place. If no place is free, refused is the reason, which the caller
// sends instead of the stream. ok is false if there is no place for that either.
func (p *Places) Take(ctx context.Context, r wire.StreamRequest) (_ context.Context, release func(), refused error, ok bool) {
	pool := p.short
	if long(r) {
		pool = p.long
	}
	ctx, cancel := context.WithCancel(ctx)
	place, refused := pool.Take(time.Now(), Holder(r), cancel)
	if refused != nil {
		var err error
		if place, err = p.refusals.Take(time.Now(), Holder(r), nil); err != nil {
			cancel()
			return ctx, func() {}, refused, false
		}
	}
	return ctx, func() { place.Release(); cancel() }, refused, true
}
