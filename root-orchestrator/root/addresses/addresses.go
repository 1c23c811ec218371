// Package addresses is the root's book of semantic addresses: which service has
// which, and which rest because a service that is gone had them. It is pure and
// part of the root's core, which journals what it says.
//
//	b, err := addresses.New(ranges.Services, most)
//	have, undo, err := b.Assign(now, "acme/shop.prod.web.prod", spec.Addresses, have)
package addresses

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/ipam"
)

// Rest is how long an address that was given back is given to no other tenant, and
// to no other service that did not choose it: longer than anybody remembers where it
// led.
const Rest = 30 * time.Minute

// reserved are the addresses of a range that nobody gets: its first and its last.
const reserved = 2

// Book says who has which address. It has one owner.
type Book struct {
	pool    *ipam.Pool
	owners  map[netip.Addr]api.ServiceID
	resting map[netip.Addr]Resting
	queue   []netip.Addr // resting, in the order in which their rest ends
	most    int          // that one tenant has or had, with the tenants below it; 0: any number
	of      map[api.Tenant]int
}

// Resting is an address that was given back, and by whom: that service may have it
// again at once, and a service of the same tenant that chooses it.
type Resting struct {
	Service api.ServiceID `json:"service"`
	Until   time.Time     `json:"until"`
	Quoted  bool          `json:"quoted,omitempty"` // so says a cluster, whose word takes nothing of the tenant's part
}

// New is a book of a range in which nothing is given. No tenant gets more than most
// of it, with the tenants below it; 0 bounds none.
func New(p netip.Prefix, most int) (*Book, error) {
	pool, err := ipam.NewPool(p, ipam.Options{First: 1, Last: reserved - 1})
	if err != nil {
		return nil, err
	}
	return &Book{
		pool: pool, owners: map[netip.Addr]api.ServiceID{}, resting: map[netip.Addr]Resting{}, most: most, of: map[api.Tenant]int{},
	}, nil
}

// own makes an address a service's, and disown nobody's.
func (b *Book) own(id api.ServiceID, a netip.Addr) {
	b.owners[a] = id
	b.count(id, +1)
}

func (b *Book) disown(a netip.Addr) {
	b.count(b.owners[a], -1)
	delete(b.owners, a)
}

// lay lets an address rest, and wake ends that.
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

// count keeps what a tenant has of the range and what rests because it had it: who
// takes and gives back all the time must not wear the range out.
func (b *Book) count(id api.ServiceID, by int) {
	t := highest(id)
	if b.of[t] += by; b.of[t] == 0 {
		delete(b.of, t)
	}
}

// highest is the tenant under whom all are that a service's tenant may be below: it
// makes as many as it likes.
func highest(id api.ServiceID) api.Tenant { return id.Tenant().Top() }

// full reports whether a service's tenant gets no more.
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

// size is how many addresses the range has to give.
func (b *Book) size() int {
	p := b.pool.Prefix()
	return 1<<(p.Addr().BitLen()-p.Bits()) - reserved
}

// Owner is the service that has an address, or none.
func (b *Book) Owner(a netip.Addr) api.ServiceID { return b.owners[a] }

// Free is how many addresses are neither taken nor at rest.
func (b *Book) Free(now time.Time) int { return b.pool.Free(now) }

// Mark notes that a service has the addresses, as it was before a restart. Those
// that another has are taken out of what is returned.
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

// Plan is an assignment of addresses that may be undone.
type Plan struct {
	Addresses api.ServiceAddresses
	Freed     []netip.Addr // that the service had and has no more
	taken     []netip.Addr
	woken     map[netip.Addr]Resting
}

// Assign gives a service the addresses that its SLA asks for; what it has and
// still wants, it keeps. Fixed ones that another has, or had until lately, are
// ErrConflict, of no use ErrInvalid; nothing left is ErrUnavailable. What the
// service no longer wants is still its own; Undo takes the plan back.
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
	// Fixed ones first, so that none is given away by chance.
	err := b.assign(want, have, &p.Addresses, one)
	if err != nil {
		b.Undo(p)
		return Plan{}, err
	}
	each(have, func(a netip.Addr) {
		if !used[a] && b.owners[a] == id {
			p.Freed = append(p.Freed, a)
		}
	})
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

// is reports whether an SLA's address is a fixed one.
func is(text string) bool { return text != "" && text != "auto" }

// choose is the address that text asks for. One that is not fixed stays what it
// was; a new one is chosen by the service's name and what it is for, so that it gets its own again
// from a root that has forgotten it.
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

// tries is how often a name chooses before chance does.
const tries = 8

// mayWake reports whether a service may have an address that rests: if it was its
// own, or if an SLA chose it and it was another's of the same tenant. Who still has
// it for the earlier service then reaches another of its own tenant's. What a cluster
// quoted may still be in use there.
func (r Resting) mayWake(id api.ServiceID, chosen bool) bool {
	return r.Service == id || chosen && !r.Quoted && r.Service.Tenant() == id.Tenant()
}

// take takes one address, from its rest too if mayWake says so.
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

// because says who has the address, as far as that is the asker's business.
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

// Undo takes back what a plan took.
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

// Gives reports whether the plan takes an address that the service neither has nor
// is the only one to get, for it still rests from being its own.
func (p Plan) Gives(now time.Time, id api.ServiceID) bool {
	return slices.ContainsFunc(p.taken, func(a netip.Addr) bool {
		r, woken := p.woken[a]
		return !woken || r.Service != id || !r.Until.After(now)
	})
}

// Woken are the addresses that a plan took out of their rest.
func (p Plan) Woken() []netip.Addr {
	var out []netip.Addr
	for _, a := range p.taken {
		if _, ok := p.woken[a]; ok {
			out = append(out, a)
		}
	}
	return out
}

// Rest lets addresses of a service rest until a moment. Those that it does not
// have are left alone, but for those that nobody has: they are in use somewhere.
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

// Resting is what rests at an address, if anything does.
func (b *Book) Resting(a netip.Addr) (Resting, bool) {
	r, ok := b.resting[a]
	return r, ok
}

// Sweep ends the rests that are over, and lists them.
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

// Addresses lists a service's, in order.
func Addresses(a api.ServiceAddresses) (out []netip.Addr) {
	each(a, func(addr netip.Addr) { out = append(out, addr) })
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func each(a api.ServiceAddresses, fn func(netip.Addr)) {
	for _, addr := range []netip.Addr{a.RoundRobin, a.Closest} {
		if addr.IsValid() {
			fn(addr)
		}
	}
	for _, addr := range a.Instances {
		fn(addr)
	}
}

// candidate is the n-th address that the service's name chooses.
func (b *Book) candidate(id api.ServiceID, n uint64) netip.Addr {
	p := b.pool.Prefix()
	d := uint64(api.Want{Service: id}.Digest()) + n*0x9e3779b97f4a7c15
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
