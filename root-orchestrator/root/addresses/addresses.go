// Package addresses is the root's book of semantic addresses: which service has
// which, and which rest because a service that is gone had them. It is pure and
// part of the root's core, which journals what it says.
//
//	b, err := addresses.New(ranges.Services)
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

// Rest is how long an address that was given back is given to no other service:
// longer than anybody remembers where it led.
const Rest = 30 * time.Minute

// Book says who has which address. It has one owner.
type Book struct {
	pool    *ipam.Pool
	owners  map[netip.Addr]api.ServiceID
	resting map[netip.Addr]Resting
	queue   []netip.Addr // resting, in the order in which their rest ends
}

// Resting is an address that was given back, and by whom: who had it may have it
// again at once.
type Resting struct {
	Service api.ServiceID `json:"service"`
	Until   time.Time     `json:"until"`
}

// New is a book of a range in which nothing is given.
func New(p netip.Prefix) (*Book, error) {
	pool, err := ipam.NewPool(p, ipam.Options{First: 1, Last: 1})
	if err != nil {
		return nil, err
	}
	return &Book{pool: pool, owners: map[netip.Addr]api.ServiceID{}, resting: map[netip.Addr]Resting{}}, nil
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
		delete(b.resting, a)
		b.owners[a] = id
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
			if b.take(now, id, a, p) == nil {
				return a, nil
			}
		}
		a, err := b.pool.Take(now, netip.Addr{})
		if err != nil {
			return a, fmt.Errorf("an address for %s: %w", id, err)
		}
		b.owners[a] = id
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
	if err := b.take(now, id, a, p); err != nil {
		return a, fmt.Errorf("address %s for %s: %w", a, id, b.because(id, a, err))
	}
	return a, nil
}

// tries is how often a name chooses before chance does.
const tries = 8

// take takes one address, from its rest too if it was the service's own.
func (b *Book) take(now time.Time, id api.ServiceID, a netip.Addr, p *Plan) error {
	if b.owners[a] != "" {
		return api.ErrConflict
	}
	if r, ok := b.resting[a]; ok {
		if r.Service != id {
			return api.ErrConflict
		}
		delete(b.resting, a)
		p.woken[a] = r
	} else if _, err := b.pool.Take(now, a); err != nil {
		return err
	}
	b.owners[a] = id
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
	if r, ok := b.resting[a]; ok {
		return fmt.Errorf("%s had it, and it rests until %s: %w", who(r.Service), r.Until.UTC().Format(time.RFC3339), api.ErrConflict)
	}
	if of := b.owners[a]; of != "" {
		return fmt.Errorf("%s has it: %w", who(of), api.ErrConflict)
	}
	if errors.Is(err, api.ErrInvalid) {
		return fmt.Errorf("it is not one of %s that are given: %w", b.pool.Prefix(), api.ErrInvalid)
	}
	return err
}

// Undo takes back what a plan took.
func (b *Book) Undo(p Plan) {
	for _, a := range p.taken {
		delete(b.owners, a)
		if r, ok := p.woken[a]; ok {
			b.resting[a] = r
			b.queue = append(b.queue, a)
			continue
		}
		b.pool.Give(time.Time{}, a)
	}
}

// Gives reports whether the plan takes an address that the service neither has nor
// is the only one to get, for it still rests from being its own.
func (p Plan) Gives(now time.Time) bool {
	return slices.ContainsFunc(p.taken, func(a netip.Addr) bool {
		r, woken := p.woken[a]
		return !woken || !r.Until.After(now)
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
func (b *Book) Rest(id api.ServiceID, addrs []netip.Addr, until time.Time) (resting []netip.Addr) {
	for _, a := range addrs {
		if _, rests := b.resting[a]; rests {
			continue
		}
		switch b.owners[a] {
		case id:
			delete(b.owners, a)
		case "":
			if b.pool.Mark(a) != nil {
				continue
			}
		default:
			continue
		}
		b.resting[a] = Resting{id, until}
		b.queue = append(b.queue, a)
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
		r, ok := b.resting[a]
		if ok && r.Until.After(now) {
			break
		}
		b.queue = b.queue[1:]
		if ok {
			delete(b.resting, a)
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
