package httpapi

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/account"
)

var (
	watchPlaces = fairshare.Declare(fairshare.Bound{
		Resource: "watches", Total: 4096, Share: []int{1024, 64}, Per: "tenant, then person",
		Beyond: "429; when all are taken, the newest watch of the largest tenant ends and may resume later",
		Attack: "TestWatchesOfOneUserLeaveRoomForOthers",
	})
	pairGuesses = fairshare.Declare(fairshare.Bound{
		Resource: "sign-in rates remembered for a user from an address", Total: 16384, Per: "address",
		Beyond: "20 wrong sign-ins at once and 12 a minute, then 429; a right one clears the count; beyond the total the least recently used user of the address with most starts afresh",
		Attack: "TestGuessersDoNotLockAUserOut",
	})
	addressGuesses = fairshare.Declare(fairshare.Bound{
		Resource: "sign-in rates remembered for addresses", Total: 16384, Per: "subnet",
		Beyond: "60 sign-ins at once and 1 a second, then 429; beyond the total the least recently used address of the largest subnet starts afresh",
		Attack: "TestGuessersDoNotLockAUserOut",
	})
	subnetGuesses = fairshare.Declare(fairshare.Bound{
		Resource: "sign-in rates remembered for subnets", Total: 16384, Per: "subnet",
		Beyond: "600 sign-ins at once and 10 a second, then 429; beyond the total the least recently used subnet starts afresh",
		Attack: "TestGuessersDoNotLockAUserOut",
	})
)

// shares limits watches and sign-ins per user and address; apishare limits requests.
type shares struct {
	now       func() time.Time
	watches   *fairshare.Pool
	pairs     *fairshare.Rates
	addresses *fairshare.Rates
	subnets   *fairshare.Rates
	failed    *fairshare.Rates // addresses; fewer tokens are left after recent failures
}

func newShares(now func() time.Time) *shares {
	return &shares{
		now:       now,
		watches:   fairshare.NewPool(watchPlaces, fairshare.Keep),
		pairs:     fairshare.NewRates(pairGuesses, 0.2, 20),
		addresses: fairshare.NewRates(addressGuesses, 1, 60),
		subnets:   fairshare.NewRates(subnetGuesses, 10, 600),
		failed:    fairshare.NewRates(addressGuesses, 1.0/600, 2),
	}
}

type remoteKey struct{}

// guess allows an attempt to sign in as a user, or returns ErrTooMany. There is no limit per user
// alone, because anybody could use it to lock the user out. The cost of attempts is limited by
// account's turns, which prefer addresses without failures. done has to be called with the result.
func (s *shares) guess(ctx context.Context, user string) (_ context.Context, done func(error), err error) {
	remote, _ := ctx.Value(remoteKey{}).(string)
	path, now := fairshare.Remote(remote), s.now()
	subnet, address := path[0], path[1]
	for _, try := range []struct {
		rates      *fairshare.Rates
		group, key string
	}{{s.pairs, address, user}, {s.addresses, subnet, address}, {s.subnets, subnet, subnet}} {
		if err := try.rates.Allow(now, try.group, try.key); err != nil {
			return nil, nil, err
		}
	}
	ctx = account.From(ctx, path, s.failed.Left(now, subnet, address) >= 1)
	return ctx, func(err error) {
		if err == nil {
			s.pairs.Forget(address, user)
			s.failed.Forget(subnet, address)
		} else {
			_ = s.failed.Allow(now, subnet, address) // an error means that the bucket is already empty
		}
	}, nil
}

// remoteAddress adds the client's address to the context, for guess.
func remoteAddress(ctx huma.Context, next func(huma.Context)) {
	r, _ := humachi.Unwrap(ctx)
	next(huma.WithValue(ctx, remoteKey{}, r.RemoteAddr))
}
