package httpapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/problem"
)

// The bounds of what people and strangers may use of the root's API.
var (
	personRates = fairshare.Declare(fairshare.Bound{
		Resource: "request rates remembered for people", Total: 16384, Per: "tenant",
		Beyond: "100 requests/s and 400 at once per person, then 429; beyond the total the least recently used person of the largest tenant starts afresh",
		Attack: "TestWildLoopsAreSlowedDown",
	})
	strangerRates = fairshare.Declare(fairshare.Bound{
		Resource: "request rates remembered for addresses without a token", Total: 16384, Per: "subnet",
		Beyond: "100 requests/s and 400 at once per address, then 429; beyond the total the least recently used address of the largest subnet starts afresh",
		Attack: "TestStrangersDoNotUseUpPeoplesRequests",
	})
	peopleInFlight = fairshare.Declare(fairshare.Bound{
		Resource: "requests of people under way", Total: 2048, Share: []int{1024, 128}, Per: "tenant, then person",
		Beyond: "429; a tenant gets a further place only while more are free than it holds",
		Attack: "TestRequestsUnderWayOfOnePersonLeaveRoomForOthers",
	})
	strangersInFlight = fairshare.Declare(fairshare.Bound{
		Resource: "requests without a token under way", Total: 512, Share: []int{256, 64}, Per: "subnet, then address",
		Beyond: "429; a subnet gets a further place only while more are free than it holds",
		Attack: "TestRequestsUnderWayOfOnePersonLeaveRoomForOthers",
	})
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

// shares divides the API among those who use it.
type shares struct {
	now              func() time.Time
	people           *fairshare.Rates
	strangers        *fairshare.Rates
	peopleInFlight   *fairshare.Pool
	strangerInFlight *fairshare.Pool
	watches          *fairshare.Pool
	pairs            *fairshare.Rates
	addresses        *fairshare.Rates
	subnets          *fairshare.Rates
	failed           *fairshare.Rates // addresses with a token less have failed lately
}

func newShares(rate float64, now func() time.Time) *shares {
	burst := max(1, int(4*rate))
	fixed := fairshare.Policy{Fixed: true}
	return &shares{
		now:              now,
		people:           fairshare.NewRates(personRates, rate, burst),
		strangers:        fairshare.NewRates(strangerRates, rate, burst),
		peopleInFlight:   fairshare.NewPool(peopleInFlight, fixed),
		strangerInFlight: fairshare.NewPool(strangersInFlight, fixed),
		watches:          fairshare.NewPool(watchPlaces, fairshare.Keep),
		pairs:            fairshare.NewRates(pairGuesses, 0.2, 20),
		addresses:        fairshare.NewRates(addressGuesses, 1, 60),
		subnets:          fairshare.NewRates(subnetGuesses, 10, 600),
		failed:           fairshare.NewRates(addressGuesses, 1.0/600, 2),
	}
}

// holderOf is the person's path in pools: the tenant at the top, since tenants
// below it cost nothing to make, and the person.
func holderOf(p rights.Principal) []string {
	top, _, _ := strings.Cut(string(p.Tenant), "/")
	return []string{top, p.User}
}

type inFlightKey struct{}

// wrap limits how often each person, or address without one, asks, and how many
// requests it has under way.
func (s *shares) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, now := principal(r.Context()), s.now()
		rates, pool, path := s.people, s.peopleInFlight, holderOf(p)
		if p.User == "" {
			rates, pool, path = s.strangers, s.strangerInFlight, fairshare.Remote(r.RemoteAddr)
		}
		err := rates.Allow(now, path[0], path[1])
		var place *fairshare.Place
		if err == nil {
			place, err = pool.Take(now, path, nil)
		}
		if err != nil {
			problem.Write(w, problemOf(err))
			return
		}
		defer place.Release()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), inFlightKey{}, place)))
	})
}

// endures says that the request has become a stream, which has a bound of its own.
func endures(ctx context.Context) {
	if place, ok := ctx.Value(inFlightKey{}).(*fairshare.Place); ok {
		place.Release()
	}
}

type remoteKey struct{}

// guess lets an address try to sign in as a user. There is no limit per user alone:
// it would let anybody lock a user out. What a guess costs the root is bounded by
// account's turns, in which addresses without a failure go first. done is called
// with the result.
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
			_ = s.failed.Allow(now, subnet, address) // what it has spent already stays spent
		}
	}, nil
}

// remoteAddress puts the caller's address where guess finds it.
func remoteAddress(ctx huma.Context, next func(huma.Context)) {
	r, _ := humachi.Unwrap(ctx)
	next(huma.WithValue(ctx, remoteKey{}, r.RemoteAddr))
}
