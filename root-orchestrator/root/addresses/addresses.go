// Package addresses assigns semantic addresses to services. An address that a service
// gives back rests before another service can have it. The package is a part of the
// root's core, which stores the assignments.
//
//	b, err := addresses.New(ranges.Services, most)
//	have, undo, err := b.Assign(now, "acme/shop.prod.web.prod", spec.Addresses, have)
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
	"github.com/treeline-edge/treeline/internal/wire"
)

// Rest is how long an address that was given back is not given to another tenant, nor to
// another service whose SLA does not name it: longer than any client caches it.
const Rest = 30 * time.Minute

// reserved is the number of addresses of a range that are not given: the first and the last.
const reserved = 2

// Book has the owner of each address. It is not safe for concurrent use.
type Book struct {
	pool    *ipam.Pool
	owners  map[netip.Addr]api.ServiceID
	resting map[netip.Addr]Resting
	queue   []netip.Addr // resting, in the order in which their rest ends
	most    int          // that one tenant has or had, with the tenants below it; 0: any number
	of      map[api.Tenant]int
	claims  map[api.ClusterID]map[netip.Addr]bool // that rest or are disputed because a cluster claims them
}

// Resting is the state of an address that was given back. The service that had it may have
// it again at once, and so may a service of the same tenant whose SLA names it.
type Resting struct {
	Service api.ServiceID `json:"service"`
	Until   time.Time     `json:"until"`
	Quoted  bool          `json:"quoted,omitempty"` // a cluster claims it; it does not count for the tenant
}

// New returns a book of a range. A tenant, with the tenants below it, gets at most that
// many addresses; 0 means no bound.
func New(p netip.Prefix, most int) (*Book, error) {
	pool, err := ipam.NewPool(p, ipam.Options{First: 1, Last: reserved - 1})
	if err != nil {
		return nil, err
	}
	return &Book{
		pool: pool, owners: map[netip.Addr]api.ServiceID{}, resting: map[netip.Addr]Resting{}, most: most, of: map[api.Tenant]int{},
		claims: map[api.ClusterID]map[netip.Addr]bool{},
	}, nil
}

// own gives an address to a service; disown takes it back.
func (b *Book) own(id api.ServiceID, a netip.Addr) {
	b.owners[a] = id
	b.count(id, +1)
}

func (b *Book) disown(a netip.Addr) {
	b.count(b.owners[a], -1)
	delete(b.owners, a)
}

// lay lets an address rest; wake ends the rest.
func (b *Book) lay(r Resting, a netip.Addr) {
	b.resting[a] = r
	b.queue = append(b.queue, a)
	if !r.Quoted {
		b.count(r.Service, +1)
	}
}

func (b *Book) wake(a netip.Addr) (r Resting, rested bool) {
	if r, rested = b.resting[a]; rested && !r.Quoted {
		b.count(r.Service, -1)
	}
	delete(b.resting, a)
	return r, rested
}

// count adds to the number of addresses that a tenant has, including resting ones: a
// tenant that takes and gives back all the time must not exhaust the range.
func (b *Book) count(id api.ServiceID, by int) {
	t := highest(id)
	if b.of[t] += by; b.of[t] == 0 {
		delete(b.of, t)
	}
}

// highest returns the topmost tenant of a service. Bounds apply to it, because it can
// create any number of tenants below it.
func highest(id api.ServiceID) api.Tenant { return id.Tenant().Top() }

// full reports whether a service's tenant is at its bound.
func (b *Book) full(id api.ServiceID) bool { return b.most > 0 && b.of[highest(id)] >= b.most }

func (b *Book) tooMany(id api.ServiceID) error {
	t, rest := highest(id), 0
	for _, r := range b.resting {
		if !r.Quoted && highest(r.Service) == t {
			rest++
		}
	}
	return fmt.Errorf("tenant %s has %d of the %d addresses of services, %d of them at rest, and gets no more (network.tenant_percent of the root); "+
		"delete services or ask for fewer addresses, and wait until those have rested, %s: %w", t, b.of[t], b.size(), rest, Rest, api.ErrConflict)
}

// size returns how many addresses the range can give.
func (b *Book) size() int {
	p := b.pool.Prefix()
	return 1<<(p.Addr().BitLen()-p.Bits()) - reserved
}

// Owner returns the service that has an address, or "".
func (b *Book) Owner(a netip.Addr) api.ServiceID { return b.owners[a] }

// Free returns how many addresses are neither owned nor resting.
func (b *Book) Free(now time.Time) int { return b.pool.Free(now) }

// Mark restores the addresses of a service after a restart. It returns those that no other
// service has.
func (b *Book) Mark(id api.ServiceID, have api.ServiceAddresses) api.ServiceAddresses {
	mark := func(a netip.Addr) netip.Addr {
		if !a.IsValid() || b.owners[a] != "" && b.owners[a] != id {
			return netip.Addr{}
		}
		if _, rests := b.resting[a]; !rests && b.owners[a] == "" && b.pool.Mark(a) != nil {
			return netip.Addr{}
		}
		if b.wake(a); b.owners[a] == "" {
			b.own(id, a)
		}
		return a
	}
	out := api.ServiceAddresses{RoundRobin: mark(have.RoundRobin), Closest: mark(have.Closest)}
	for n, a := range have.Instances {
		if a = mark(a); a.IsValid() {
			put(&out, n, a)
		}
	}
	return out
}

func put(to *api.ServiceAddresses, n int, a netip.Addr) {
	if to.Instances == nil {
		to.Instances = map[int]netip.Addr{}
	}
	to.Instances[n] = a
}

// Plan is an assignment of addresses that can be undone.
type Plan struct {
	Addresses api.ServiceAddresses
	Freed     []netip.Addr // that the service had and has no more
	taken     []netip.Addr
	woken     map[netip.Addr]Resting
}

// Assign gives a service the addresses that its SLA asks for. It keeps those that it has
// and still wants. The error is ErrConflict if another service has a fixed address or had
// it recently, ErrInvalid if the address cannot be used, and ErrUnavailable if none is
// left. The service still owns the addresses in Freed. Undo reverts the plan.
func (b *Book) Assign(now time.Time, id api.ServiceID, want *api.Addresses, have api.ServiceAddresses) (Plan, error) {
	if want == nil {
		want = &api.Addresses{}
	}
	p := Plan{woken: map[netip.Addr]Resting{}}
	used := map[netip.Addr]bool{}
	one := func(role int, text string, had netip.Addr) (netip.Addr, error) {
		a, err := b.choose(now, id, role, text, had, used, &p)
		if err == nil {
			used[a] = true
		}
		return a, err
	}
	// Fixed addresses come first, so that none of them is chosen for another use.
	err := b.assign(want, have, &p.Addresses, one)
	if err != nil {
		b.Undo(p)
		return Plan{}, err
	}
	for _, a := range have.All() {
		if !used[a] && b.owners[a] == id {
			p.Freed = append(p.Freed, a)
		}
	}
	return p, nil
}

func (b *Book) assign(want *api.Addresses, have api.ServiceAddresses, out *api.ServiceAddresses,
	one func(int, string, netip.Addr) (netip.Addr, error),
) (err error) {
	for _, fixed := range []bool{true, false} {
		if is(want.RoundRobin) == fixed {
			if out.RoundRobin, err = one(0, want.RoundRobin, have.RoundRobin); err != nil {
				return err
			}
		}
		if want.Closest != "" && is(want.Closest) == fixed {
			if out.Closest, err = one(1, want.Closest, have.Closest); err != nil {
				return err
			}
		}
		for _, r := range want.Instances {
			if is(r.Start) != fixed {
				continue
			}
			text := r.Start
			for n := r.From; n <= r.To; n++ {
				a, err := one(2+n, text, have.Instances[n])
				if err != nil {
					return err
				}
				put(out, n, a)
				if fixed {
					text = a.Next().String()
				}
			}
		}
	}
	return nil
}

// is reports whether an address in an SLA is a fixed one.
func is(text string) bool { return text != "" && text != "auto" }

// choose returns the address that text asks for. An automatic one stays what it was. A new
// one depends on the service's name and the role of the address, so that a root without
// its store chooses the same again.
func (b *Book) choose(now time.Time, id api.ServiceID, role int, text string, had netip.Addr, used map[netip.Addr]bool, p *Plan) (netip.Addr, error) {
	if !is(text) {
		if had.IsValid() && b.owners[had] == id && !used[had] {
			return had, nil
		}
		for try := range uint64(tries) {
			a := b.candidate(id, uint64(role)*tries+try)
			if b.take(now, id, a, p, false) == nil {
				return a, nil
			}
		}
		if b.full(id) {
			return netip.Addr{}, fmt.Errorf("an address for %s: %w", id, b.tooMany(id))
		}
		a, err := b.pool.Take(now, netip.Addr{})
		if err != nil {
			return a, fmt.Errorf("an address for %s: %w", id, err)
		}
		b.own(id, a)
		p.taken = append(p.taken, a)
		return a, nil
	}
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, fmt.Errorf("address %q of %s: %w: %w", text, id, err, api.ErrInvalid)
	case used[a]:
		return a, fmt.Errorf("address %s of %s is asked for twice: %w", a, id, api.ErrConflict)
	case b.owners[a] == id:
		return a, nil
	}
	if err := b.take(now, id, a, p, true); err != nil {
		return a, fmt.Errorf("address %s for %s: %w", a, id, b.because(id, a, err))
	}
	return a, nil
}

// tries is how many candidates of a name are tried before any free address is taken.
const tries = 8

// mayWake reports whether a service may have a resting address: it was its own, or an SLA
// names it and it was another service's of the same tenant, so that clients with the old
// meaning stay within the tenant. An address that a cluster claims may still be in use.
func (r Resting) mayWake(id api.ServiceID, chosen bool) bool {
	return r.Service == id || chosen && !r.Quoted && r.Service.Tenant() == id.Tenant()
}

// take gives one address to a service, also a resting one if mayWake allows it.
func (b *Book) take(now time.Time, id api.ServiceID, a netip.Addr, p *Plan, chosen bool) error {
	if b.owners[a] != "" {
		return api.ErrConflict
	}
	if r, ok := b.resting[a]; ok {
		if !r.mayWake(id, chosen) {
			return api.ErrConflict
		}
		if r.Quoted && b.full(id) { // it would count from now on
			return api.ErrConflict
		}
		b.wake(a)
		p.woken[a] = r
	} else if b.full(id) {
		return api.ErrConflict
	} else if _, err := b.pool.Take(now, a); err != nil {
		return err
	}
	b.own(id, a)
	p.taken = append(p.taken, a)
	return nil
}

// because adds to an error who has the address, without naming services of other tenants.
func (b *Book) because(id api.ServiceID, a netip.Addr, err error) error {
	who := func(of api.ServiceID) string {
		if of.Tenant() == id.Tenant() {
			return "service " + of.Name()
		}
		return "a service of another tenant"
	}
	if r, ok := b.resting[a]; ok && !r.mayWake(id, true) {
		return fmt.Errorf("%s had it, and it rests until %s: %w", who(r.Service), r.Until.UTC().Format(time.RFC3339), api.ErrConflict)
	}
	if of := b.owners[a]; of != "" {
		return fmt.Errorf("%s has it: %w", who(of), api.ErrConflict)
	}
	if errors.Is(err, api.ErrInvalid) {
		return fmt.Errorf("it is not one of %s that are given: %w", b.pool.Prefix(), api.ErrInvalid)
	}
	if b.full(id) {
		return b.tooMany(id)
	}
	return err
}

// Undo reverts a plan.
func (b *Book) Undo(p Plan) {
	for _, a := range p.taken {
		b.disown(a)
		if r, ok := p.woken[a]; ok {
			b.lay(r, a)
			continue
		}
		b.pool.Give(time.Time{}, a)
	}
}

// Gives reports whether the plan takes a new address: one that the service did not have
// and that does not rest for it.
func (p Plan) Gives(now time.Time, id api.ServiceID) bool {
	return slices.ContainsFunc(p.taken, func(a netip.Addr) bool {
		r, woken := p.woken[a]
		return !woken || r.Service != id || !r.Until.After(now)
	})
}

// Woken returns the addresses of the plan that rested.
func (p Plan) Woken() []netip.Addr {
	var out []netip.Addr
	for _, a := range p.taken {
		if _, ok := p.woken[a]; ok {
			out = append(out, a)
		}
	}
	return out
}

// Rest lets addresses of a service rest and returns those that do from now on. It skips
// addresses of other services and outside the range.
func (b *Book) Rest(r Resting, addrs []netip.Addr) (resting []netip.Addr) {
	for _, a := range addrs {
		if _, rests := b.resting[a]; rests {
			continue
		}
		switch b.owners[a] {
		case r.Service:
			b.disown(a)
		case "":
			if b.pool.Mark(a) != nil {
				continue
			}
		default:
			continue
		}
		b.lay(r, a)
		resting = append(resting, a)
	}
	return resting
}

const (
	maxClaims = 1024 // of one cluster at a time
	maxName   = 512  // of a service; longer names are none of the root's
)

// Claim takes which addresses a cluster says are in use. Those that no service has
// rest until a moment: the root's store may have been restored from an older copy, and
// must not give them to others. Those that another service has are disputed. It returns
// the claims that are new. A claim counts for the cluster's bound while the address
// rests or has an owner.
func (b *Book) Claim(by api.ClusterID, used []wire.ServiceAddress, until time.Time) (resting []netip.Addr, disputed []wire.ServiceAddress) {
	claims := b.claims[by]
	maps.DeleteFunc(claims, func(a netip.Addr, _ bool) bool {
		_, rests := b.resting[a]
		return !rests && b.owners[a] == ""
	})
	for _, u := range used {
		owner := b.owners[u.Address]
		if owner == u.Service || claims[u.Address] || len(claims) >= maxClaims || len(u.Service) > maxName {
			continue
		}
		if owner != "" {
			disputed = append(disputed, u)
		} else if rests := b.Rest(Resting{Service: u.Service, Until: until, Quoted: true}, []netip.Addr{u.Address}); len(rests) > 0 {
			resting = append(resting, u.Address)
		} else {
			continue // it rests already, or is outside the range
		}
		if claims == nil {
			claims = map[netip.Addr]bool{}
			b.claims[by] = claims
		}
		claims[u.Address] = true
	}
	return resting, disputed
}

// RemoveCluster removes the claims of a cluster. What rests because of them rests on.
func (b *Book) RemoveCluster(id api.ClusterID) { delete(b.claims, id) }

// Resting returns the state of a resting address.
func (b *Book) Resting(a netip.Addr) (Resting, bool) {
	r, ok := b.resting[a]
	return r, ok
}

// Sweep ends the rests that are over and returns their addresses.
func (b *Book) Sweep(now time.Time) (over []netip.Addr) {
	for len(b.queue) > 0 {
		a := b.queue[0]
		if r, ok := b.resting[a]; ok && r.Until.After(now) {
			break
		}
		b.queue = b.queue[1:]
		if _, rested := b.wake(a); rested {
			b.pool.Give(now, a)
			over = append(over, a)
		}
	}
	return over
}

// candidate returns the n-th address that a service's name leads to.
func (b *Book) candidate(id api.ServiceID, n uint64) netip.Addr {
	p := b.pool.Prefix()
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
