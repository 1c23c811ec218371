// Package apishare divides a port's HTTP API among its clients: it bounds the request rate and the
// number of concurrent requests of each Holder. A holder is a user, the address of an
// unauthenticated client, or a certificate. The APIs of the root and of clusters, and the links of
// clusters and nodes, have the same bounds.
//
//	shares := apishare.New(apishare.Options{Person: principalOf})
//	router.Use(authenticate, shares.Wrap)              // people
//	err := apishare.DoPeer(shares, r, identity, serve) // certificates
package apishare

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/problem"
)

const (
	ofAddress = "address of the largest subnet"

	flight = "TestRequestsUnderWayOfOnePersonLeaveRoomForOthers"
	slowed = "TestRequestsOfOneCertificateAreSlowedDown"
	tokens = "TestRefusedTokensSlowTheirAddressOnly"
)

var (
	personRates = fairshare.RateBound("tenant; of each API", "100 requests/s and 400 at once per person, then 429", "person of the largest tenant", "TestWildLoopsAreSlowedDown").
			Declare("request rates remembered for people", 16384)
	strangerRates = fairshare.RateBound("subnet; of each API", "100 requests/s and 400 at once per address, then 429", ofAddress, "TestUnauthenticatedRequestsLeaveCapacityForUsers").
			Declare("request rates remembered for addresses without a token", 16384)
	peerRates = fairshare.RateBound("certificate's identity; of each API",
		"200 requests/s and 800 at once per identity and route, of streams those that nobody waits for alone, then 429", "route of the identity with most", slowed).
		Declare("request rates remembered for certificates of nodes and clusters", 65536)
	joinRates = fairshare.RateBound("subnet", "60 refused joins at once and 1 a second per address, then 429", ofAddress, "TestRefusedJoinsSlowTheirAddressOnly").
			Declare("addresses remembered for refused joins", 16384)
	tokenRates = fairshare.RateBound("subnet; of each API", "60 refused tokens at once and 1 a second per address, then 429 for tokens that are not known", ofAddress, tokens).
			Declare("addresses remembered for refused tokens", 16384)
	knownTokens = fairshare.Bound{Per: "tenant; of each API", Beyond: "the least recently used token of the largest tenant is checked like a new one", Attack: tokens}.
			Declare("tokens that are remembered as good", 16384, 1024)
	certificateRates = fairshare.Bound{
		Per: "identity", Beyond: "20 certificates at once and 1 a minute per identity, joins and renewals together, then 429", Attack: "TestCertificatesOfOneIdentityAreFew",
	}.Declare("rates of certificates signed for nodes and clusters", 65536)

	peopleInFlight    = inFlight("tenant", "tenant, then person; of each API", flight).Declare("requests of people under way", 2048, 1024, 128)
	strangersInFlight = inFlight("subnet", "subnet, then address; of each API", flight).Declare("requests without a token under way", 512, 256, 64)
	joinsInFlight     = inFlight("subnet", "subnet, then address", "TestJoinsUnderWayLeaveRoomForOthers").Declare("joins under way", 1024, 512, 256)
	peersInFlight     = fairshare.Bound{Per: "certificate's identity; of each API", Beyond: "429; streams count until they have begun", Attack: slowed}.
				Declare("requests of nodes and clusters under way", 16384, 64)
)

func inFlight(group, per, attack string) fairshare.Bound {
	return fairshare.Bound{Per: per, Beyond: "429; a " + group + " gets a further place only while more are free than it holds", Attack: attack}
}

type Options struct {
	// Person returns the authenticated user of a request's context. Without a User the request
	// counts for its address. Only Wrap calls it.
	Person func(context.Context) rights.Principal

	Rate float64          // requests per second per user or address, default 100; the burst is 4 × Rate
	Now  func() time.Time // default time.Now
}

// kind is a kind of holders.
type kind int

const (
	people kind = iota
	strangers
	peers
	joins
	kinds
)

// Holder is the user, address or certificate that a request counts for.
type Holder struct {
	kind  kind
	path  []string // in the pool of concurrent requests
	group string   // of key in the rates
	key   string
	// refusals means that only refused requests count towards the rate.
	refusals bool
}

// Person returns the holder of a user's requests.
func Person(p rights.Principal) Holder {
	path := Path(p)
	return Holder{kind: people, path: path, group: path[0], key: path[1]}
}

// Path returns the user's path in pools: the topmost tenant, and the user.
func Path(p rights.Principal) []string { return []string{string(p.Tenant.Top()), p.User} }

// Stranger returns the holder of unauthenticated requests from a remote address.
func Stranger(remote string) Holder {
	path := fairshare.Remote(remote)
	return Holder{kind: strangers, path: path, group: path[0], key: path[1]}
}

// Peer returns the holder of requests with the certificate of an identity, such as "node/n1". Each
// route has its own rate.
func Peer(identity, route string) Holder {
	return Holder{kind: peers, path: []string{identity}, group: identity, key: route}
}

// Stream is Peer for streams, whose number depends on users' requests: only refused streams, which
// no requester waits for, count towards the rate.
func Stream(identity, route string) Holder {
	h := Peer(identity, route)
	h.refusals = true
	return h
}

// Join returns the holder of joins from a remote address. Only refused joins count towards the
// rate, because many machines may join from one address.
func Join(remote string) Holder {
	h := Stranger(remote)
	h.kind, h.refusals = joins, true
	return h
}

// Shares divides one API. It is safe for concurrent use.
type Shares struct {
	opt          Options
	rates        [kinds]*fairshare.Rates
	inFlight     [kinds]*fairshare.Pool
	tokens       *fairshare.Rates // refused, by address
	known        *fairshare.Known // tokens, by their hash
	certificates *fairshare.Rates
}

// tokenLife is how long a token counts as known after its last use.
const tokenLife = time.Hour

// New makes the shares of one API.
func New(o Options) *Shares {
	o.Rate = cmp.Or(o.Rate, 100)
	if o.Now == nil {
		o.Now = time.Now
	}
	burst := max(1, int(4*o.Rate))
	fixed := fairshare.Policy{Fixed: true}
	return &Shares{
		opt: o,
		rates: [kinds]*fairshare.Rates{
			people: fairshare.NewRates(personRates, o.Rate, burst), strangers: fairshare.NewRates(strangerRates, o.Rate, burst),
			peers: fairshare.NewRates(peerRates, 200, 800), joins: fairshare.NewRates(joinRates, 1, 60),
		},
		inFlight: [kinds]*fairshare.Pool{
			people: fairshare.NewPool(peopleInFlight, fixed), strangers: fairshare.NewPool(strangersInFlight, fixed),
			peers: fairshare.NewPool(peersInFlight, fixed), joins: fairshare.NewPool(joinsInFlight, fixed),
		},
		tokens: fairshare.NewRates(tokenRates, 1, 60), known: fairshare.NewKnown(knownTokens, tokenLife),
		certificates: fairshare.NewRates(certificateRates, 1.0/60, 20),
	}
}

// Do serves one request of the holder, or returns a *fairshare.Full. Other errors are those of
// serve.
func (s *Shares) Do(r *http.Request, h Holder, serve func(*http.Request) error) error {
	now, rates := s.opt.Now(), s.rates[h.kind]
	if !h.refusals || rates.Left(now, h.group, h.key) < 1 {
		if err := rates.Allow(now, h.group, h.key); err != nil {
			return err
		}
	}
	place, err := s.inFlight[h.kind].Take(now, h.path, nil)
	if err != nil {
		return err
	}
	defer place.Release()
	err = serve(r.WithContext(place.NewContext(r.Context())))
	if h.refusals && refused(err) {
		_ = rates.Allow(s.opt.Now(), h.group, h.key) // an error means that no token is left
	}
	return err
}

// DoPeer serves a request of a node or cluster, whose identity peer returns. peer verifies the
// certificate with every request, because it may be revoked, or the machine removed, while a
// connection lasts. A request without a valid certificate counts for its address, and one with an
// id in its path as a Stream. Errors are those of Do, peer and serve.
func DoPeer[ID interface{ Addr() api.Addr }](s *Shares, r *http.Request, peer func(*http.Request) (ID, error), serve func(*http.Request, ID) error) error {
	id, unknown := peer(r)
	holder := Stranger(r.RemoteAddr)
	switch {
	case unknown != nil:
	case r.PathValue("id") != "":
		holder = Stream(string(id.Addr()), r.Pattern)
	default:
		holder = Peer(string(id.Addr()), r.Pattern)
	}
	return s.Do(r, holder, func(r *http.Request) error {
		if unknown != nil {
			return unknown
		}
		return serve(r, id)
	})
}

// refused reports whether a request failed because of its credentials or its content.
func refused(err error) bool {
	for _, kind := range []error{api.ErrUnauthenticated, api.ErrForbidden, api.ErrInvalid, api.ErrNotFound} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// Wrap refuses requests beyond the share of the user or address, with the status of Do's error. Use
// it after authentication.
func (s *Shares) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := Stranger(r.RemoteAddr)
		if p := s.opt.Person(r.Context()); p.User != "" {
			h = Person(p)
		}
		err := s.Do(r, h, func(r *http.Request) error {
			next.ServeHTTP(w, r)
			return nil
		})
		if err != nil {
			problem.Write(w, problem.Of(err, "the daemon's log"))
		}
	})
}

// Token calls check for a token from the remote address, unless too many from there were refused.
// Recently valid tokens are always checked, so that other clients at the address cannot lock their
// holders out. who is the holder of the token.
func (s *Shares) Token(remote, token string, check func() (who rights.Principal, err error)) error {
	now, path, sum := s.opt.Now(), fairshare.Remote(remote), sha256.Sum256([]byte(token))
	key := string(sum[:])
	if s.tokens.Left(now, path[0], path[1]) < 1 && !s.known.Has(now, key) {
		if err := s.tokens.Allow(now, path[0], path[1]); err != nil {
			return err
		}
	}
	who, err := check()
	switch {
	case err == nil:
		s.known.Add(now, Path(who)[0], key)
	case refused(err):
		s.known.Delete(key)
		_ = s.tokens.Allow(now, path[0], path[1])
	}
	return err
}

// Certificate counts one certificate that is signed for the identity. It returns a *fairshare.Full
// above the rate.
func (s *Shares) Certificate(identity string) error {
	return s.certificates.Allow(s.opt.Now(), identity, identity)
}
