package root

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addresses"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
	"github.com/treeline-edge/treeline/root-orchestrator/root/netbook"
)

const kindAddress = "address" // a resting address

// Validate checks the settings of the network. It returns ErrInvalid.
func (c Config) Validate() error {
	if c.ClusterPercent < 0 || c.ClusterPercent > 100 {
		return fmt.Errorf("cluster_percent %d: want 1 to 100, or 0 for the default: %w", c.ClusterPercent, api.ErrInvalid)
	}
	if c.TenantPercent < 0 || c.TenantPercent > 100 {
		return fmt.Errorf("tenant_percent %d: want 1 to 100, or 0 for the default: %w", c.TenantPercent, api.ErrInvalid)
	}
	if c.Ranges == (wire.NetRanges{}) {
		return nil
	}
	return netbook.CheckRanges(c.Ranges)
}

// restAddresses takes addresses from a service and lets them rest (see addresses.Resting).
func (c *network) restAddresses(id api.ServiceID, addrs []netip.Addr) {
	c.saveResting(c.addresses.Rest(addresses.Resting{Service: id, Until: c.wall.Add(addresses.Rest)}, addrs))
}

func (c *network) saveResting(addrs []netip.Addr) {
	for _, a := range addrs {
		r, _ := c.addresses.Resting(a)
		c.journal.Put(kindAddress, a.String(), r)
	}
	c.applyNet(c.net.SetOwners(c.netNow(), netView{&c.state}, addrs))
}

// addressPlans has the addresses that each service of an application would get.
type addressPlans map[api.ServiceID]addresses.Plan

func (p addressPlans) undo(b *addresses.Registry) {
	for _, plan := range p {
		b.Undo(plan)
	}
}

// sweepAddresses frees the addresses whose rest is over.
func (c *network) sweepAddresses() {
	for _, a := range c.addresses.Sweep(c.wall) {
		c.journal.Delete(kindAddress, a.String())
	}
}

// planAddresses takes the addresses that an application requests. On an error it takes none. It
// saves nothing, because a plan calls it outside of a step.
func (c *network) planAddresses(wall time.Time, id api.AppID, spec api.Application) (addressPlans, error) {
	var have map[api.ServiceID]api.ServiceAddresses
	if a := c.apps.App(id); a != nil {
		have = a.Addresses
	}
	plans := addressPlans{}
	for i := range spec.Services {
		m := &spec.Services[i]
		if m.Virtualization == "process" {
			continue // it uses its node's network
		}
		sid := id.Service(m.Name, m.Namespace)
		p, err := c.planService(wall, sid, m.Addresses, have[sid])
		if err != nil {
			plans.undo(c.addresses)
			return nil, err
		}
		plans[sid] = p
	}
	return plans, nil
}

func (c *network) planService(wall time.Time, id api.ServiceID, want *api.Addresses, have api.ServiceAddresses) (addresses.Plan, error) {
	p, err := c.addresses.Assign(wall, id, want, have)
	if err != nil {
		return p, err
	}
	err = c.checkIPv6(id, want, p.Addresses.RoundRobin)
	if err == nil && c.net.Waiting() && p.TakesNew(wall, id) {
		err = c.net.WaitError(c.now, "addresses for "+id.Name())
	}
	if err != nil {
		c.addresses.Undo(p)
	}
	return p, err
}

// checkIPv6 returns ErrInvalid if the SLA names an IPv6 address that does not correspond to the
// service's IPv4 address.
func (c *network) checkIPv6(id api.ServiceID, want *api.Addresses, got netip.Addr) error {
	if want == nil || want.RoundRobin6 == "" {
		return nil
	}
	if six := c.net.Ranges().To6(got); want.RoundRobin6 != six.String() {
		return fmt.Errorf("rr_ip_v6 %s for %s: the IPv6 address of %s is %s; write that, or leave rr_ip_v6 out: %w",
			want.RoundRobin6, id.Name(), got, six, api.ErrInvalid)
	}
	return nil
}

func (c *network) commitAddresses(a *applications.App, plans addressPlans) {
	for _, id := range step.Keys(plans) {
		p := plans[id]
		for _, addr := range p.Reused() {
			c.journal.Delete(kindAddress, addr.String())
		}
		c.apps.SetAddresses(a, id, p.Addresses)
		c.restAddresses(id, p.Freed)
	}
	for _, id := range step.Keys(a.Addresses) {
		if _, still := plans[id]; !still {
			have := a.Addresses[id].All()
			delete(a.Addresses, id)
			c.restAddresses(id, have)
		}
	}
}

// completeAddresses gives addresses to services without any: those of an earlier release, or of an
// application that was not saved completely.
func (c *network) completeAddresses() {
	c.sweepAddresses()
	for _, id := range c.apps.Apps() {
		a := c.apps.App(id)
		plans, err := c.planAddresses(c.wall, id, a.Spec)
		switch {
		case err == nil:
			c.commitAddresses(a, plans)
		case !c.net.Waiting():
			c.event(api.Event{Tenant: id.Tenant(), Kind: "app", Object: id.Name(), Detail: err.Error()})
		}
	}
}
