package httpapi

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/account"
)

const guessing = "TestGuessersDoNotLockAUserOut"

var (
	pairGuesses = fairshare.RateBound("address", "20 wrong sign-ins at once and 12 a minute, then 429; a right one clears the count", "user of the address with most", guessing).
			Declare("sign-in rates remembered for a user from an address", 16384)
	addressGuesses = fairshare.RateBound("subnet", "60 sign-ins at once and 1 a second, then 429", "address of the largest subnet", guessing).
			Declare("sign-in rates remembered for addresses", 16384)
	subnetGuesses = fairshare.RateBound("subnet", "600 sign-ins at once and 10 a second, then 429", "subnet", guessing).
			Declare("sign-in rates remembered for subnets", 16384)
)

// shares limits sign-ins per user and address; apishare limits requests.
type shares struct {
	now       func() time.Time
	pairs     *fairshare.Rates
	addresses *fairshare.Rates
	subnets   *fairshare.Rates
	failed    *fairshare.Rates // addresses; fewer tokens are left after recent failures
}

func newShares(now func() time.Time) *shares {
	return &shares{
		now:       now,
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
	ctx = account.WithOrigin(ctx, path, s.failed.Left(now, subnet, address) >= 1)
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
