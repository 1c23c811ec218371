// Package ipam allocates addresses of a prefix, and prefixes of larger ones. It does no I/O: the
// caller saves allocations and marks them after a restart.
//
//	pool, err := ipam.NewPool(subnet, ipam.Options{First: 2, Last: 1, Quarantine: 2 * time.Minute})
//	a, err := pool.Take(now, netip.Addr{})
//	pool.Give(now, a)
package ipam

import (
	"fmt"
	"math/big"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// MaxBits bounds a pool, and a range of blocks, to 2^MaxBits members. Each member takes one bit of
// memory.
const MaxBits = 24

// Options configures a pool.
type Options struct {
	First      int           // number of addresses at the start of the prefix that Take does not allocate
	Last       int           // likewise at its end
	Quarantine time.Duration // how long a freed address is not allocated again
}

// Pool allocates addresses of one prefix. The zero Pool is not usable.
type Pool struct {
	prefix  netip.Prefix
	members *set
}

// NewPool makes an empty pool. It fails with ErrInvalid if the prefix is invalid, is not masked,
// has more than 2^MaxBits addresses, or none that the options allow.
func NewPool(p netip.Prefix, o Options) (*Pool, error) {
	if !p.IsValid() || p != p.Masked() || p.Addr().BitLen()-p.Bits() > MaxBits {
		return nil, fmt.Errorf("%s is not a prefix of at most 2^%d addresses: %w", p, MaxBits, api.ErrInvalid)
	}
	n := 1 << (p.Addr().BitLen() - p.Bits())
	if o.First < 0 || o.Last < 0 || o.First+o.Last >= n {
		return nil, fmt.Errorf("%s has no address beside its first %d and last %d: %w", p, o.First, o.Last, api.ErrInvalid)
	}
	return &Pool{prefix: p, members: newSet(n, o.First, n-o.Last, o.Quarantine)}, nil
}

// Prefix returns the pool's prefix.
func (p *Pool) Prefix() netip.Prefix { return p.prefix }

// Take allocates the address want or, for the zero Addr, the next free one after the last
// allocation, so that addresses are reused late.
//
// It fails with ErrInvalid if want is outside the pool or excluded by the options, ErrConflict if
// it is allocated, and ErrUnavailable if it is in quarantine or no address is free.
func (p *Pool) Take(now time.Time, want netip.Addr) (netip.Addr, error) {
	if want.IsValid() {
		i, ok := p.index(want)
		if !ok {
			return netip.Addr{}, fmt.Errorf("%s is not in %s: %w", want, p.prefix, api.ErrInvalid)
		}
		if err := p.members.take(now, i); err != nil {
			return netip.Addr{}, fmt.Errorf("%s of %s is %w", want, p.prefix, err)
		}
		return want, nil
	}
	i, ok := p.members.next(now)
	if !ok {
		return netip.Addr{}, fmt.Errorf("%s is exhausted: %d taken, %d in quarantine: %w",
			p.prefix, p.members.taken, p.members.resting(), api.ErrUnavailable)
	}
	return add(p.prefix.Addr(), i, 0), nil
}

// TakeEarly allocates the address that has been in quarantine longest, if that is at least least,
// or fails with ErrUnavailable. It is for a pool without free addresses. Peers of the address's
// former holder may not have received the change yet.
func (p *Pool) TakeEarly(now time.Time, least time.Duration) (netip.Addr, error) {
	i, ok := p.members.takeEarly(now, least)
	if !ok {
		return netip.Addr{}, fmt.Errorf("%s is exhausted: %d taken, none of %d in quarantine for %s: %w",
			p.prefix, p.members.taken, p.members.resting(), least, api.ErrUnavailable)
	}
	return add(p.prefix.Addr(), i, 0), nil
}

// Mark records that the address, even one that the options exclude, was allocated before a restart.
// It fails with ErrInvalid if the address is outside the pool, and ErrConflict if it is allocated.
func (p *Pool) Mark(a netip.Addr) error {
	i, ok := p.index(a)
	if !ok {
		return fmt.Errorf("%s is not in %s: %w", a, p.prefix, api.ErrInvalid)
	}
	if !p.members.mark(i) {
		return fmt.Errorf("%s of %s is taken: %w", a, p.prefix, api.ErrConflict)
	}
	return nil
}

// Give frees an address, which starts its quarantine. It ignores addresses that are not allocated.
func (p *Pool) Give(now time.Time, a netip.Addr) {
	if i, ok := p.index(a); ok {
		p.members.give(now, i)
	}
}

// Taken reports whether the address is allocated, not counting quarantine.
func (p *Pool) Taken(a netip.Addr) bool {
	i, ok := p.index(a)
	return ok && p.members.bits.has(i) && !p.members.inQuarantine(i)
}

// Free returns how many addresses can be allocated now.
func (p *Pool) Free(now time.Time) int { return p.members.free(now) }

// Resting returns how many addresses are in quarantine.
func (p *Pool) Resting(now time.Time) int {
	p.members.endQuarantines(now)
	return p.members.resting()
}

func (p *Pool) index(a netip.Addr) (int, bool) {
	if !p.prefix.Contains(a) {
		return 0, false
	}
	return distance(p.prefix.Addr(), a, 0), true
}

// distance returns the number of units of 2^shift addresses between base and a.
func distance(base, a netip.Addr, shift int) int {
	d := new(big.Int).Sub(number(a), number(base))
	return int(d.Rsh(d, uint(shift)).Int64())
}

// add returns the address n units of 2^shift after base.
func add(base netip.Addr, n, shift int) netip.Addr {
	sum := new(big.Int).Lsh(big.NewInt(int64(n)), uint(shift))
	a, _ := netip.AddrFromSlice(sum.Add(sum, number(base)).FillBytes(make([]byte, base.BitLen()/8)))
	return a
}

func number(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }
