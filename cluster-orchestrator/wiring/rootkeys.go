package wiring

import (
	"context"
	"errors"
	"time"

	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	rootRetry = 10 * time.Second // between attempts to get a certificate of the root's newest key
	rootEvery = time.Hour        // between checks if the root sends nothing
)

// compareRoot renews the certificate of the authority if the root says that its key was replaced, or an earlier one retired, since
// the certificate was issued.
func (id *identities) compareRoot(k wire.RootKeys) {
	have, err := identity.GenerationOf(id.credentials().Pair.Chain[0])
	if err == nil && have.Before(identity.Generation{Root: k.Key, RootOldest: k.Oldest}) {
		id.renewUpper()
	}
}

func (id *identities) renewUpper() {
	select {
	case id.outdated <- struct{}{}:
	default: // a renewal is pending
	}
}

// followRoot renews the certificate of the authority when the root's key was replaced or an earlier one retired, and those below it,
// until ctx ends.
func (o *orchestrator) followRoot(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	wanted := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.id.outdated:
			wanted = true
		case <-next.C:
		}
		var err error
		if wanted {
			err = o.id.upper.Renew(ctx)
		}
		if err == nil {
			wanted = false
			err = o.renewBelow(ctx)
		}
		pause := rootEvery
		if err != nil {
			pause = rootRetry
			if ctx.Err() == nil {
				o.log.Warn("the root's key was replaced or retired, and the renewal of certificates failed; retrying", "retry_in", pause, "err", err)
			}
		}
		next.Reset(pause)
	}
}

// renewBelow renews the cluster's own certificates if they are of an earlier generation than that of the authority, and has the
// nodes asked to renew theirs.
func (o *orchestrator) renewBelow(ctx context.Context) error {
	own, err := identity.GenerationOf(o.id.keeper.Pair().Chain[1])
	if err != nil {
		return err
	}
	upper, err := identity.GenerationOf(o.id.credentials().Pair.Chain[0])
	if err != nil || !own.Before(upper) {
		return err
	}
	// The certificate of the port is last: a failure before is repeated.
	if o.outer != nil {
		err = o.outer.Renew(ctx)
	}
	if err = errors.Join(err, o.id.keeper.Renew(ctx)); err != nil {
		return err
	}
	o.log.Warn("certificates renewed because the root's key was replaced or retired", "key", upper.Root, "oldest", upper.RootOldest)
	if o.rotation != nil { // not of a standby
		o.rotation.Wake()
		if own.RootOldest < upper.RootOldest && o.broker != nil {
			go o.broker.Recheck(context.WithoutCancel(ctx), recheckPause)
		}
	}
	return nil
}

// rootKeys reports to the root which of its keys the cluster and its nodes have certificates of.
func (o *orchestrator) rootKeys() (out wire.RootKeysReport) {
	g, err := identity.GenerationOf(o.id.keeper.Pair().Chain[1])
	if err != nil {
		return out
	}
	out.Root = wire.RootKeys{Key: g.Root, Oldest: g.RootOldest}
	behind := o.nodes.members.Behind(identity.Generation{Root: g.Root, RootOldest: g.RootOldest})
	out.Behind = len(behind)
	for _, b := range behind[:min(len(behind), wire.MaxBehindNodes)] {
		out.Nodes = append(out.Nodes, b.Node)
	}
	return out
}
