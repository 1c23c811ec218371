package ebpf

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Usage implements dataplane.Plane. It fails with ErrInvalid before Sync.
func (p *Plane) Usage(ctx context.Context) (plane.Usage, error) {
	u := plane.Usage{
		Services: map[netip.Addr]uint64{}, Backends: map[netip.Addr]uint64{},
		Sources: map[netip.Addr]uint64{},
	}
	if !p.open {
		return u, fmt.Errorf("use of a plane that was not synced: %w", api.ErrInvalid)
	}
	services, err := dump[uint32, objectsService](p.o.TlServices)
	if err != nil {
		return u, err
	}
	for a, s := range services {
		if s.Turn > 0 {
			u.Services[addr(a)] = s.Turn
		}
	}
	backends, err := dump[uint32, objectsRemote](p.o.TlBackends)
	if err != nil {
		return u, err
	}
	sources, err := dump[uint32, objectsRemote](p.o.TlSources)
	if err != nil {
		return u, err
	}
	for into, from := range map[*map[netip.Addr]uint64]map[uint32]objectsRemote{&u.Backends: backends, &u.Sources: sources} {
		for a, r := range from {
			if r.Used > 0 {
				(*into)[addr(a)] = r.Used
			}
		}
	}
	if u.Peers, err = p.Traffic(ctx); err != nil {
		return u, err
	}
	var each []objectsCounts
	if err := p.o.TlCounts.Lookup(uint32(0), &each); err != nil {
		return u, fmt.Errorf("counts: %w", err)
	}
	for _, c := range each {
		u.Denied += c.Denied
		u.Forged += c.Forged
	}
	return u, nil
}

// Traffic implements dataplane.Plane. It fails with ErrInvalid before Sync.
func (p *Plane) Traffic(context.Context) (map[api.PeerKey][2]uint64, error) {
	if !p.open {
		return nil, fmt.Errorf("traffic of a plane that was not synced: %w", api.ErrInvalid)
	}
	all := map[api.PeerKey][2]uint64{}
	for k, v := range p.peers {
		if v.Path != api.PathRoute && v.Path != api.PathVXLAN && v.Accepts == (plane.Paths{}) {
			continue
		}
		var each []objectsTraffic
		if err := p.o.TlTraffic.Lookup(v.id, &each); err != nil {
			return nil, fmt.Errorf("traffic of peer %s: %w", k, err)
		}
		var sum [2]uint64
		for _, t := range each {
			sum[0] += t.To
			sum[1] += t.From
		}
		all[k] = sum
	}
	return all, nil
}
