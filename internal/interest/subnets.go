package interest

import (
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// subnets finds the nodes whose subnets contain an address.
type subnets struct {
	of      map[netip.Prefix][]api.PeerKey // several nodes if a record is out of date
	lengths map[int]int                    // number of subnets by prefix length
}

func newSubnets() subnets {
	return subnets{map[netip.Prefix][]api.PeerKey{}, map[int]int{}}
}

func (s subnets) add(p api.Peer) {
	for _, sub := range p.Subnets {
		sub = sub.Masked()
		of := s.of[sub]
		if !sub.IsValid() || slices.Contains(of, p.Key) {
			continue // invalid, or listed twice
		}
		if len(of) == 0 {
			s.lengths[sub.Bits()]++
		}
		s.of[sub] = append(of, p.Key)
	}
}

func (s subnets) remove(p api.Peer) {
	for _, sub := range p.Subnets {
		sub = sub.Masked()
		i := slices.Index(s.of[sub], p.Key)
		if i < 0 {
			continue
		}
		if s.of[sub] = slices.Delete(s.of[sub], i, i+1); len(s.of[sub]) > 0 {
			continue
		}
		delete(s.of, sub)
		if s.lengths[sub.Bits()]--; s.lengths[sub.Bits()] == 0 {
			delete(s.lengths, sub.Bits())
		}
	}
}

// at returns the nodes with the smallest subnet that contains the address.
func (s subnets) at(a netip.Addr) (of []api.PeerKey) {
	longest := -1
	for n := range s.lengths {
		if p, err := a.Prefix(n); err == nil && n > longest && len(s.of[p]) > 0 {
			of, longest = s.of[p], n
		}
	}
	return of
}
