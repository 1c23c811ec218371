// Package addresses assigns semantic addresses to services. An address that a service gives back
// rests before another service can have it. The package is a sub-machine of the root's core, which
// stores the assignments.
//
//	g, err := addresses.New(ranges.Services, limit)
//	plan, err := g.Assign(now, "acme/shop.prod.web.prod", spec.Addresses, have)
package addresses

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/ipam"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Rest is how long an address rests after it was given back: longer than any client caches it.
const Rest = 30 * time.Minute

// reserved is the number of addresses of a range that are not assigned: the first and the last.
const reserved = 2

// Registry keeps the owner of each address. It is not safe for concurrent use.
type Registry struct {
	pool      *ipam.Pool
	owners    map[netip.Addr]api.ServiceID
	resting   map[netip.Addr]Resting
	ends      step.Timers[netip.Addr] // of the rests
	limit     int                     // for the addresses, owned and resting, of a topmost tenant; 0: none
	perTenant map[api.Tenant]int
	claims    map[api.ClusterID]map[netip.Addr]bool // addresses claimed by a cluster that rest or are disputed
}

// Resting is the state of an address that was given back. Until the rest ends, only the service
// that had it can get it, or a service of the same tenant whose SLA names it.
type Resting struct {
	Service api.ServiceID `json:"service"`
	Until   time.Time     `json:"until"`
	Claimed bool          `json:"quoted,omitempty"` // a cluster claims it; it does not count for the tenant
}

// New returns the registry of a range. limit is the maximum of addresses for a topmost tenant with
// the tenants below it; 0 means no limit.
func New(p netip.Prefix, limit int) (*Registry, error) {
	pool, err := ipam.NewPool(p, ipam.Options{First: 1, Last: reserved - 1})
	if err != nil {
		return nil, err
	}
	return &Registry{
		pool: pool, owners: map[netip.Addr]api.ServiceID{}, resting: map[netip.Addr]Resting{}, limit: limit, perTenant: map[api.Tenant]int{},
		claims: map[api.ClusterID]map[netip.Addr]bool{},
	}, nil
}

// setOwner records the owner of an address; removeOwner removes it.
func (g *Registry) setOwner(id api.ServiceID, a netip.Addr) {
	g.owners[a] = id
	g.count(id, +1)
}

func (g *Registry) removeOwner(a netip.Addr) {
	g.count(g.owners[a], -1)
	delete(g.owners, a)
}

// startRest begins the rest of an address, and endRest ends it.
func (g *Registry) startRest(r Resting, a netip.Addr) {
	g.resting[a] = r
	g.ends.Set(a, r.Until)
	if !r.Claimed {
		g.count(r.Service, +1)
	}
}

func (g *Registry) endRest(a netip.Addr) (r Resting, rested bool) {
	if r, rested = g.resting[a]; rested && !r.Claimed {
		g.count(r.Service, -1)
	}
	delete(g.resting, a)
	g.ends.Clear(a)
	return r, rested
}

// count adds to the number of addresses of a tenant. Resting addresses count too, so that a tenant
// cannot exhaust the range by taking and giving back addresses.
func (g *Registry) count(id api.ServiceID, by int) {
	t := topTenant(id)
	if g.perTenant[t] += by; g.perTenant[t] == 0 {
		delete(g.perTenant, t)
	}
}

// topTenant returns the topmost tenant of a service. Limits apply to it, because it can create any
// number of tenants below it.
func topTenant(id api.ServiceID) api.Tenant { return id.Tenant().Top() }

func (g *Registry) full(id api.ServiceID) bool {
	return g.limit > 0 && g.perTenant[topTenant(id)] >= g.limit
}

func (g *Registry) limitError(id api.ServiceID) error {
	t, rest := topTenant(id), 0
	for _, r := range g.resting {
		if !r.Claimed && topTenant(r.Service) == t {
			rest++
		}
	}
	return fmt.Errorf("tenant %s has %d of the %d addresses of services, %d of them at rest, and has reached its limit (network.tenant_percent of the root); "+
		"delete services or request fewer addresses, and wait until these have rested, %s: %w", t, g.perTenant[t], g.size(), rest, Rest, api.ErrConflict)
}

func (g *Registry) size() int {
	p := g.pool.Prefix()
	return 1<<(p.Addr().BitLen()-p.Bits()) - reserved
}

func (g *Registry) Owner(a netip.Addr) api.ServiceID { return g.owners[a] }

// Free returns how many addresses have no owner and do not rest.
func (g *Registry) Free(now time.Time) int { return g.pool.Free(now) }

// Restore restores the addresses of a service after a restart. It returns those that no other service
// has.
func (g *Registry) Restore(id api.ServiceID, have api.ServiceAddresses) api.ServiceAddresses {
	mark := func(a netip.Addr) netip.Addr {
		if !a.IsValid() || g.owners[a] != "" && g.owners[a] != id {
			return netip.Addr{}
		}
		if _, rests := g.resting[a]; !rests && g.owners[a] == "" && g.pool.Mark(a) != nil {
			return netip.Addr{}
		}
		if g.endRest(a); g.owners[a] == "" {
			g.setOwner(id, a)
		}
		return a
	}
	out := api.ServiceAddresses{RoundRobin: mark(have.RoundRobin), Closest: mark(have.Closest)}
	for n, a := range have.Instances {
		if a = mark(a); a.IsValid() {
			setInstance(&out, n, a)
		}
	}
	return out
}

func setInstance(to *api.ServiceAddresses, n int, a netip.Addr) {
	if to.Instances == nil {
		to.Instances = map[int]netip.Addr{}
	}
	to.Instances[n] = a
}

// Plan is an assignment of addresses that Undo can revert.
type Plan struct {
	Addresses api.ServiceAddresses
	Freed     []netip.Addr // addresses that the service no longer needs
	taken     []netip.Addr
	reused    map[netip.Addr]Resting
}

// Assign assigns the addresses that a service's SLA requests. The service keeps those that it
// already has, and owns those in Freed until Rest. Errors: ErrConflict (a fixed address is taken or
// rests, or the tenant has reached its limit), ErrInvalid (a fixed address cannot be used),
// ErrUnavailable (no address is left).
func (g *Registry) Assign(now time.Time, id api.ServiceID, want *api.Addresses, have api.ServiceAddresses) (Plan, error) {
	if want == nil {
		want = &api.Addresses{}
	}
	p := Plan{reused: map[netip.Addr]Resting{}}
	used := map[netip.Addr]bool{}
	one := func(role int, text string, had netip.Addr) (netip.Addr, error) {
		a, err := g.choose(now, id, role, text, had, used, &p)
		if err == nil {
			used[a] = true
		}
		return a, err
	}
	// Fixed addresses come first, so that no automatic choice takes one of them.
	err := g.assign(want, have, &p.Addresses, one)
	if err != nil {
		g.Undo(p)
		return Plan{}, err
	}
	for _, a := range have.All() {
		if !used[a] && g.owners[a] == id {
			p.Freed = append(p.Freed, a)
		}
	}
	return p, nil
}

func (g *Registry) assign(want *api.Addresses, have api.ServiceAddresses, out *api.ServiceAddresses,
	one func(int, string, netip.Addr) (netip.Addr, error),
) (err error) {
	for _, named := range []bool{true, false} {
		if fixed(want.RoundRobin) == named {
			if out.RoundRobin, err = one(0, want.RoundRobin, have.RoundRobin); err != nil {
				return err
			}
		}
		if want.Closest != "" && fixed(want.Closest) == named {
			if out.Closest, err = one(1, want.Closest, have.Closest); err != nil {
				return err
			}
		}
		for _, r := range want.Instances {
			if fixed(r.Start) != named {
				continue
			}
			text := r.Start
			for n := r.From; n <= r.To; n++ {
				a, err := one(2+n, text, have.Instances[n])
				if err != nil {
					return err
				}
				setInstance(out, n, a)
				if named {
					text = a.Next().String()
				}
			}
		}
	}
	return nil
}

// fixed reports whether text is an address, and not left to the root's choice.
func fixed(text string) bool { return text != "" && text != "auto" }

// choose returns the address that text requests. An automatic address is kept. A new one is derived
// from the service's name and the role of the address, so that a root that lost its store chooses
// the same one again.
func (g *Registry) choose(now time.Time, id api.ServiceID, role int, text string, had netip.Addr, used map[netip.Addr]bool, p *Plan) (netip.Addr, error) {
	if !fixed(text) {
		if had.IsValid() && g.owners[had] == id && !used[had] {
			return had, nil
		}
		for try := range uint64(tries) {
			a := g.candidate(id, uint64(role)*tries+try)
			if g.take(now, id, a, p, false) == nil {
				return a, nil
			}
		}
		if g.full(id) {
			return netip.Addr{}, fmt.Errorf("assign an address to %s: %w", id, g.limitError(id))
		}
		a, err := g.pool.Take(now, netip.Addr{})
		if err != nil {
			return a, fmt.Errorf("assign an address to %s: %w", id, err)
		}
		g.setOwner(id, a)
		p.taken = append(p.taken, a)
		return a, nil
	}
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, fmt.Errorf("parse address %q of %s: %w: %w", text, id, err, api.ErrInvalid)
	case used[a]:
		return a, fmt.Errorf("address %s of %s is asked for twice: %w", a, id, api.ErrConflict)
	case g.owners[a] == id:
		return a, nil
	}
	if err := g.take(now, id, a, p, true); err != nil {
		return a, fmt.Errorf("assign address %s to %s: %w", a, id, g.explain(now, id, a, err))
	}
	return a, nil
}

// tries is how many derived addresses are tried before any free address is taken.
const tries = 8

// mayReuse reports whether a service may have a resting address: the rest is over, it had the
// address before, or its SLA names it (chosen) and a service of the same tenant had it, so that
// clients with the old address stay within the tenant. An address that a cluster claims may still
// be in use.
func (r Resting) mayReuse(now time.Time, id api.ServiceID, chosen bool) bool {
	return !r.Until.After(now) || r.Service == id || chosen && !r.Claimed && r.Service.Tenant() == id.Tenant()
}

// take assigns one address to a service. It takes a resting one if mayReuse allows it.
func (g *Registry) take(now time.Time, id api.ServiceID, a netip.Addr, p *Plan, chosen bool) error {
	if g.owners[a] != "" {
		return api.ErrConflict
	}
	if r, ok := g.resting[a]; ok {
		if !r.mayReuse(now, id, chosen) {
			return api.ErrConflict
		}
		if (r.Claimed || topTenant(r.Service) != topTenant(id)) && g.full(id) { // it would count towards the limit from now on
			return api.ErrConflict
		}
		g.endRest(a)
		p.reused[a] = r
	} else if g.full(id) {
		return api.ErrConflict
	} else if _, err := g.pool.Take(now, a); err != nil {
		return err
	}
	g.setOwner(id, a)
	p.taken = append(p.taken, a)
	return nil
}

// explain adds to an error who has the address, without the names of other tenants' services.
func (g *Registry) explain(now time.Time, id api.ServiceID, a netip.Addr, err error) error {
	who := func(of api.ServiceID) string {
		if of.Tenant() == id.Tenant() {
			return "service " + of.Name()
		}
		return "a service of another tenant"
	}
	if r, ok := g.resting[a]; ok && !r.mayReuse(now, id, true) {
		return fmt.Errorf("%s had it, and it rests until %s: %w", who(r.Service), r.Until.UTC().Format(time.RFC3339), api.ErrConflict)
	}
	if of := g.owners[a]; of != "" {
		return fmt.Errorf("%s has it: %w", who(of), api.ErrConflict)
	}
	if errors.Is(err, api.ErrInvalid) {
		return fmt.Errorf("it is not an address of %s that services get: %w", g.pool.Prefix(), api.ErrInvalid)
	}
	if g.full(id) {
		return g.limitError(id)
	}
	return err
}

func (g *Registry) Undo(p Plan) {
	for _, a := range p.taken {
		g.removeOwner(a)
		if r, ok := p.reused[a]; ok {
			g.startRest(r, a)
			continue
		}
		g.pool.Give(time.Time{}, a)
	}
}

// TakesNew reports whether the plan takes an address that the service did not have and that does not
// rest for it.
func (p Plan) TakesNew(now time.Time, id api.ServiceID) bool {
	return slices.ContainsFunc(p.taken, func(a netip.Addr) bool {
		r, reused := p.reused[a]
		return !reused || r.Service != id || !r.Until.After(now)
	})
}

func (p Plan) Reused() []netip.Addr {
	var out []netip.Addr
	for _, a := range p.taken {
		if _, ok := p.reused[a]; ok {
			out = append(out, a)
		}
	}
	return out
}

// Rest begins the rest of a service's addresses and returns those that were not resting. It skips
// addresses of other services and outside the range.
func (g *Registry) Rest(r Resting, addrs []netip.Addr) (resting []netip.Addr) {
	for _, a := range addrs {
		if _, rests := g.resting[a]; rests {
			continue
		}
		switch g.owners[a] {
		case r.Service:
			g.removeOwner(a)
		case "":
			if g.pool.Mark(a) != nil {
				continue
			}
		default:
			continue
		}
		g.startRest(r, a)
		resting = append(resting, a)
	}
	return resting
}

const (
	maxClaims = 1024 // claims of one cluster at a time
	maxName   = 512  // bytes of a service's name; the root has no longer ones
)

// Claim records the addresses that a cluster reports as in use, and returns the new claims. An
// address without an owner rests until the given time, because a root restored from an older copy
// may have lost its owner. An address of another service is disputed. At most maxClaims claims of a
// cluster count.
func (g *Registry) Claim(by api.ClusterID, used []wire.ServiceAddress, until time.Time) (resting []netip.Addr, disputed []wire.ServiceAddress) {
	claims := g.claims[by]
	maps.DeleteFunc(claims, func(a netip.Addr, _ bool) bool {
		_, rests := g.resting[a]
		return !rests && g.owners[a] == ""
	})
	for _, u := range used {
		owner := g.owners[u.Address]
		if owner == u.Service || claims[u.Address] || len(claims) >= maxClaims || len(u.Service) > maxName {
			continue
		}
		if owner != "" {
			disputed = append(disputed, u)
		} else if rests := g.Rest(Resting{Service: u.Service, Until: until, Claimed: true}, []netip.Addr{u.Address}); len(rests) > 0 {
			resting = append(resting, u.Address)
		} else {
			continue // it already rests, or is outside the range
		}
		if claims == nil {
			claims = map[netip.Addr]bool{}
			g.claims[by] = claims
		}
		claims[u.Address] = true
	}
	return resting, disputed
}

// RemoveCluster removes the claims of a cluster. Addresses that rest because of them continue to
// rest.
func (g *Registry) RemoveCluster(id api.ClusterID) { delete(g.claims, id) }

// Resting returns the state of a resting address, and whether it rests.
func (g *Registry) Resting(a netip.Addr) (Resting, bool) {
	r, ok := g.resting[a]
	return r, ok
}

// Sweep frees the addresses whose rest is over and returns them.
func (g *Registry) Sweep(now time.Time) (over []netip.Addr) {
	for a, ok := g.ends.Pop(now); ok; a, ok = g.ends.Pop(now) {
		g.endRest(a)
		g.pool.Give(now, a)
		over = append(over, a)
	}
	return over
}

// candidate returns the n-th derived address of a service. It depends only on the service's name.
func (g *Registry) candidate(id api.ServiceID, n uint64) netip.Addr {
	p := g.pool.Prefix()
	d := uint64(wire.Subscription{Service: id}.Digest()) + n*0x9e3779b97f4a7c15
	d ^= d >> 29
	size := uint64(1) << (p.Addr().BitLen() - p.Bits())
	at := d % size
	raw := p.Addr().As4()
	for i := 3; i >= 0; i-- {
		raw[i] |= byte(at)
		at >>= 8
	}
	return netip.AddrFrom4(raw)
}
