// Package apishare divides an HTTP API fairly among those who use it: how often
// each person, or address without a token, sends a request, and how many requests
// each has under way. The root's and the clusters' APIs have the same bounds.
//
//	shares := apishare.New(apishare.Options{Person: principalOf})
//	router.Use(authenticate, shares.Wrap)
package apishare

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/problem"
)

var (
	personRates = fairshare.Declare(fairshare.Bound{
		Resource: "request rates remembered for people", Total: 16384, Per: "tenant; of each API",
		Beyond: "100 requests/s and 400 at once per person, then 429; beyond the total the least recently used person of the largest tenant starts afresh",
		Attack: "TestWildLoopsAreSlowedDown",
	})
	strangerRates = fairshare.Declare(fairshare.Bound{
		Resource: "request rates remembered for addresses without a token", Total: 16384, Per: "subnet; of each API",
		Beyond: "100 requests/s and 400 at once per address, then 429; beyond the total the least recently used address of the largest subnet starts afresh",
		Attack: "TestStrangersDoNotUseUpPeoplesRequests",
	})
	peopleInFlight = fairshare.Declare(fairshare.Bound{
		Resource: "requests of people under way", Total: 2048, Share: []int{1024, 128}, Per: "tenant, then person; of each API",
		Beyond: "429; a tenant gets a further place only while more are free than it holds",
		Attack: "TestRequestsUnderWayOfOnePersonLeaveRoomForOthers",
	})
	strangersInFlight = fairshare.Declare(fairshare.Bound{
		Resource: "requests without a token under way", Total: 512, Share: []int{256, 64}, Per: "subnet, then address; of each API",
		Beyond: "429; a subnet gets a further place only while more are free than it holds",
		Attack: "TestRequestsUnderWayOfOnePersonLeaveRoomForOthers",
	})
)

// Options are what Shares need.
type Options struct {
	// Person returns who sends the request of the context; one without a User is
	// counted by its address.
	Person func(context.Context) rights.Principal

	Rate float64          // requests a second of one person or address: 100, and four times as many at once
	Now  func() time.Time // time.Now
}

// Shares divide one API. They are safe for concurrent use.
type Shares struct {
	opt                               Options
	people, strangers                 *fairshare.Rates
	peopleInFlight, strangersInFlight *fairshare.Pool
}

// New makes shares of which nothing is used.
func New(o Options) *Shares {
	if o.Rate == 0 {
		o.Rate = 100
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	burst := max(1, int(4*o.Rate))
	fixed := fairshare.Policy{Fixed: true}
	return &Shares{
		opt:               o,
		people:            fairshare.NewRates(personRates, o.Rate, burst),
		strangers:         fairshare.NewRates(strangerRates, o.Rate, burst),
		peopleInFlight:    fairshare.NewPool(peopleInFlight, fixed),
		strangersInFlight: fairshare.NewPool(strangersInFlight, fixed),
	}
}

// Holder is the person's path in pools: the topmost tenant, since tenants below it
// cost nothing to make, and the person.
func Holder(p rights.Principal) []string {
	top, _, _ := strings.Cut(string(p.Tenant), "/")
	return []string{top, p.User}
}

type placeKey struct{}

// Wrap refuses requests beyond the caller's share with 429. It comes after the
// request was authenticated.
func (s *Shares) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, now := s.opt.Person(r.Context()), s.opt.Now()
		rates, pool, path := s.people, s.peopleInFlight, Holder(p)
		if p.User == "" {
			rates, pool, path = s.strangers, s.strangersInFlight, fairshare.Remote(r.RemoteAddr)
		}
		err := rates.Allow(now, path[0], path[1])
		var place *fairshare.Place
		if err == nil {
			place, err = pool.Take(now, path, nil)
		}
		if err != nil {
			problem.Write(w, problem.Of(err, "the daemon's log"))
			return
		}
		defer place.Release()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), placeKey{}, place)))
	})
}

// Endures gives back the place of a request that has become a stream with a bound
// of its own.
func Endures(ctx context.Context) {
	if place, ok := ctx.Value(placeKey{}).(*fairshare.Place); ok {
		place.Release()
	}
}
