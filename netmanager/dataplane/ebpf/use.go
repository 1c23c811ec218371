package ebpf

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Usage implements dataplane.Plane.
func (p *Plane) Usage(ctx context.Context) (plane.Usage, error) {
	u := plane.Usage{
		Services: map[netip.Addr]uint64{}, Backends: map[netip.Addr]uint64{},
		Sources: map[netip.Addr]uint64{},
	}
	if !p.open {
		return u, dataplane.NotSynced("usage")
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
	for m, into := range map[*ebpf.Map]map[netip.Addr]uint64{p.o.TlBackends: u.Backends, p.o.TlSources: u.Sources} {
		remotes, err := dump[uint32, objectsRemote](m)
		if err != nil {
			return u, err
		}
		for a, r := range remotes {
			if r.Used > 0 {
				into[addr(a)] = r.Used
			}
		}
	}
	if u.Peers, err = p.Traffic(ctx); err != nil {
		return u, err
	}
	var each []objectsCounts
	if err := p.o.TlCounts.Lookup(uint32(0), &each); err != nil {
		return u, fmt.Errorf("read the counters of dropped packets: %w", err)
	}
	for _, c := range each {
		u.Denied += c.Denied
		u.Forged += c.Forged
	}
	return u, nil
}

// Traffic implements dataplane.Plane.
func (p *Plane) Traffic(context.Context) (map[api.PeerKey][2]uint64, error) {
	if !p.open {
		return nil, dataplane.NotSynced("traffic")
	}
	all := map[api.PeerKey][2]uint64{}
	for k, v := range p.peers {
		if v.Path != api.PathRoute && v.Path != api.PathVXLAN && v.Accepts == (plane.Paths{}) {
			continue
		}
		var each []objectsTraffic
		if err := p.o.TlTraffic.Lookup(v.id, &each); err != nil {
			return nil, fmt.Errorf("read the traffic of peer %s: %w", k, err)
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
