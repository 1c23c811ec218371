package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
)

// NewClassifier is New on a kernel without tcx.
func NewClassifier(prefix string) (*Plane, error) {
	p, err := New(prefix)
	if err == nil {
		p.attacher = classifier{}
	}
	return p, err
}

// Small limits planes to 4096 flows of a kind until the end of the test.
func Small(t testing.TB) {
	old := maxFlows
	maxFlows = minFlows
	t.Cleanup(func() { maxFlows = old })
}

// Hooks returns how many attached programs the plane has records of.
func (p *Plane) Hooks() int { return len(p.hooks) }

// Whole compares the index with the places of flows in an idle plane, and returns the number of
// flows.
func (p *Plane) Whole() (flows int, err error) {
	want := map[slot]bool{}
	var wrong []error
	err = walk(p.o.TlFlows, func(at uint32, f *objectsFlow) {
		if f.Claim == 0 {
			return
		}
		flows++
		h := f.Half[0]
		answers := objectsTuple{Src: h.Dst, Dst: h.Src, Sport: h.Dport, Dport: h.Sport, Proto: f.Name.Proto, Family: f.Name.Family}
		want[p.slot(f.Name, at<<1)], want[p.slot(answers, at<<1|1)] = true, true
		if f.Claim&1 == 0 {
			wrong = append(wrong, fmt.Errorf("place %d is being written", at))
		}
	})
	if err != nil {
		return flows, err
	}
	err = walk(p.o.TlIndex, func(at uint32, b *objectsBucket) {
		for _, is := range b.Slot {
			if s := (slot{at, is}); is != 0 && !want[s] {
				wrong = append(wrong, fmt.Errorf("slot %#x of bucket %d is of no flow", is, at))
			} else {
				delete(want, s)
			}
		}
	})
	for s := range want {
		wrong = append(wrong, fmt.Errorf("slot %#x is not in bucket %d", s.is, s.bucket))
	}
	return flows, errors.Join(append(wrong, err)...)
}

type slot struct{ bucket, is uint32 }

// slot returns the slot of a tuple in the index, as bpf/table.h computes it.
func (p *Plane) slot(t objectsTuple, where uint32) slot {
	const tag, beside = 19, 64
	a, b := ntohs(t.Sport), ntohs(t.Dport)
	last, larger := max(a, b)%beside, uint32(0)
	if a > b {
		larger = 1
		a /= beside
	} else {
		b /= beside
	}
	s := p.set.Seed
	h := s[4] + s[0]*uint64(t.Src) + s[1]*uint64(t.Dst) + s[2]*uint64(a<<16|b) + s[3]*uint64(larger<<16|uint32(t.Proto)<<8|uint32(t.Family))
	hash := uint32(h >> 32)
	return slot{(hash + last) % (1 << tag) % p.o.TlIndex.MaxEntries(), 1<<31 | hash>>tag<<tag | where}
}

func ntohs(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}

// Places returns the number of places of each kind, and the places of flows that a opened.
func (p *Plane) Places(t testing.TB, a netip.Addr) (each int, of [kinds][]int) {
	t.Helper()
	each = int(p.o.TlFlows.MaxEntries()) / kinds
	err := walk(p.o.TlFlows, func(at uint32, f *objectsFlow) {
		if f.Claim != 0 && f.Name.Src == be32(a) {
			of[int(at)/each] = append(of[int(at)/each], int(at)%each)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return each, of
}

// OnAttach calls do before each program is attached to a device.
func (p *Plane) OnAttach(do func(device int)) { p.attacher = watched{p.attacher, do} }

type watched struct {
	attacher
	do func(device int)
}

func (w watched) attach(h hook, p, old *ebpf.Program) error {
	w.do(h.device)
	return w.attacher.attach(h, p, old)
}
