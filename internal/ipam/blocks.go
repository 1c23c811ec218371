package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Blocks allocates prefixes of one length from larger ones, which may be added over time. The
// zero Blocks is not usable.
type Blocks struct {
	bits       int
	quarantine time.Duration
	whole      []share
}

type share struct {
	prefix  netip.Prefix
	blocks  *set
	retired bool
}

// NewBlocks makes an allocator, without ranges, of prefixes of length bits.
func NewBlocks(bits int, quarantine time.Duration) *Blocks {
	return &Blocks{bits: bits, quarantine: quarantine}
}

// Add adds the range p. It does nothing if p was added before, and reverts a removal. It fails with
// ErrInvalid if p is longer than a block, is not masked, has more than 2^MaxBits blocks, or overlaps
// another range.
func (b *Blocks) Add(p netip.Prefix) error {
	for i, s := range b.whole {
		if s.prefix == p {
			b.whole[i].retired = false
			return nil
		}
		if s.prefix.Overlaps(p) {
			return fmt.Errorf("%s overlaps %s: %w", p, s.prefix, api.ErrInvalid)
		}
	}
	if !p.IsValid() || p != p.Masked() || b.bits < p.Bits() || b.bits > p.Addr().BitLen() || b.bits-p.Bits() > MaxBits {
		return fmt.Errorf("%s cannot be cut into at most 2^%d blocks of /%d: %w", p, MaxBits, b.bits, api.ErrInvalid)
	}
	n := 1 << (b.bits - p.Bits())
	b.whole = append(b.whole, share{prefix: p, blocks: newSet(n, 0, n, b.quarantine)})
	return nil
}

// Remove stops allocating from p. Allocated blocks stay allocated until Give.
func (b *Blocks) Remove(p netip.Prefix) {
	for i, s := range b.whole {
		if s.prefix == p {
			b.whole[i].retired = true
		}
	}
}

// Whole returns the ranges in the order in which they were added.
func (b *Blocks) Whole() []netip.Prefix {
	var out []netip.Prefix
	for _, s := range b.whole {
		if !s.retired {
			out = append(out, s.prefix)
		}
	}
	return out
}

// Take allocates the block want or, for the zero Prefix, the next free block of the first range
// that has one. Its errors are those of Pool.Take.
func (b *Blocks) Take(now time.Time, want netip.Prefix) (netip.Prefix, error) {
	if want.IsValid() {
		s, i, err := b.find(want)
		if err != nil {
			return netip.Prefix{}, err
		}
		if s.retired {
			return netip.Prefix{}, fmt.Errorf("%s is of %s, which was withdrawn: %w", want, s.prefix, api.ErrInvalid)
		}
		if err := s.blocks.take(now, i); err != nil {
			return netip.Prefix{}, fmt.Errorf("%s is %w", want, err)
		}
		return want, nil
	}
	taken, resting := 0, 0
	for _, s := range b.whole {
		if s.retired {
			continue
		}
		if i, ok := s.blocks.next(now); ok {
			return netip.PrefixFrom(add(s.prefix.Addr(), i, s.prefix.Addr().BitLen()-b.bits), b.bits), nil
		}
		taken, resting = taken+s.blocks.taken, resting+s.blocks.resting()
	}
	return netip.Prefix{}, fmt.Errorf("no /%d is left in %v: %d taken, %d in quarantine: %w",
		b.bits, b.Whole(), taken, resting, api.ErrUnavailable)
}

// Mark records that the block, even of a removed range, was allocated before a restart. Its errors
// are those of Pool.Mark.
func (b *Blocks) Mark(p netip.Prefix) error {
	s, i, err := b.find(p)
	if err != nil {
		return err
	}
	if !s.blocks.mark(i) {
		return fmt.Errorf("%s is taken: %w", p, api.ErrConflict)
	}
	return nil
}

// Give frees a block, which starts its quarantine. It ignores blocks that are not allocated. It
// drops a removed range with its last block.
func (b *Blocks) Give(now time.Time, p netip.Prefix) {
	s, i, err := b.find(p)
	if err != nil {
		return
	}
	s.blocks.give(now, i)
	b.whole = slices.DeleteFunc(b.whole, func(s share) bool { return s.retired && s.blocks.taken == 0 })
}

// Taken reports whether the block is allocated, not counting quarantine.
func (b *Blocks) Taken(p netip.Prefix) bool {
	s, i, err := b.find(p)
	return err == nil && s.blocks.bits.has(i) && !s.blocks.inQuarantine(i)
}

// Unused returns the ranges without blocks that are allocated or in quarantine, in the order in
// which they were added.
func (b *Blocks) Unused(now time.Time) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range b.whole {
		s.blocks.endQuarantines(now)
		if !s.retired && s.blocks.taken+s.blocks.resting() == 0 {
			out = append(out, s.prefix)
		}
	}
	return out
}

// Free returns how many blocks can be allocated now.
func (b *Blocks) Free(now time.Time) int {
	n := 0
	for _, s := range b.whole {
		if !s.retired {
			n += s.blocks.free(now)
		}
	}
	return n
}

func (b *Blocks) find(p netip.Prefix) (*share, int, error) {
	for i := range b.whole {
		s := &b.whole[i]
		if p.Bits() == b.bits && p == p.Masked() && s.prefix.Contains(p.Addr()) {
			return s, distance(s.prefix.Addr(), p.Addr(), p.Addr().BitLen()-b.bits), nil
		}
	}
	return nil, 0, fmt.Errorf("%s is not a /%d of %v: %w", p, b.bits, b.Whole(), api.ErrInvalid)
}
