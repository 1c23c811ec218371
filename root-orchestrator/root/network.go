package root

import (
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addresses"
	"github.com/treeline-edge/treeline/root-orchestrator/root/netbook"
)

const metaNetwork = "network"

// network passes results between the netbook, the addresses and the other sub-machines.
type network struct{ effects }

type netView struct{ c *state }

func (v netView) Service(id api.ServiceID) (netbook.Service, bool) {
	app, spec := v.c.apps.Service(id)
	if app == nil {
		return netbook.Service{}, false
	}
	return netbook.Service{Addresses: app.Addresses[id], Spec: spec}, true
}

func (v netView) Owner(a netip.Addr) api.ServiceID { return v.c.addresses.Owner(a) }

func (v netView) Hosts(id api.ServiceID) (out []api.ClusterID) {
	if !v.c.apps.Known(id) {
		return nil
	}
	for _, host := range step.Keys(v.c.placement.Peers(id)) {
		out = append(out, api.ClusterID(host))
	}
	return out
}

func (v netView) Hosting(cl api.ClusterID, id api.ServiceID) bool {
	return v.c.apps.Known(id) && (v.c.placement.Peers(id)[string(cl)] > 0 || v.Instances(cl, id) > 0)
}

func (v netView) Instances(cl api.ClusterID, id api.ServiceID) (n int) {
	for in := range v.c.apps.EachOf(id) {
		if in.Cluster == cl || in.Vacating == cl || in.TrialAt(cl) {
			n++
		}
	}
	return n
}

func (c *network) netNow() netbook.Now { return netbook.Now{Mono: c.now, Wall: c.wall} }

func (c *network) applyNet(e netbook.Effects) {
	if e.Save {
		c.saveNetwork()
	}
	for _, ev := range e.Events {
		c.event(ev)
	}
	for _, id := range e.Changed {
		c.clusters.Change(id)
	}
	c.send = append(c.send, e.Send...)
}

func (c *network) saveNetwork() { c.journal.Put(kindMeta, metaNetwork, c.net.Record()) }

func (c *network) restoreNetwork(data []byte) error {
	if err := c.net.Restore(data); err != nil {
		return err
	}
	return c.initNetwork()
}

// initNetwork sets the configured ranges, unless the store had ranges.
func (c *network) initNetwork() error {
	err := c.net.Init()
	if err == nil && c.addresses == nil {
		p := c.net.Ranges().Services
		c.addresses, err = addresses.New(p, max(1, 1<<(32-p.Bits())*c.cfg.TenantPercent/100))
	}
	return err
}

func (c *network) startNetwork() {
	if err := c.initNetwork(); err != nil {
		panic(err) // the caller of New has validated the configuration
	}
	var services []api.ServiceID
	for _, id := range c.apps.Services() {
		if app, _ := c.apps.Service(id); app != nil {
			services = append(services, id)
		}
	}
	c.net.Start(c.netNow(), services)
	c.saveNetwork()
	c.completeAddresses()
}

// endNetwork ends a step: it answers the subscriptions that the step affects.
func (c *network) endNetwork() {
	if c.net.EndWait(c.now) {
		c.completeAddresses()
		c.applyNet(c.net.GrantAll(c.netNow()))
	}
	c.applyNet(c.net.Send(c.netNow(), netView{&c.state}))
}

func (c *network) netReport(id api.ClusterID, n *wire.ClusterNet) {
	c.applyNet(c.net.Report(c.netNow(), netView{&c.state}, id, n))
	resting, disputed := c.addresses.Claim(id, n.InUse, c.wall.Add(addresses.Rest))
	c.saveResting(resting)
	for _, d := range disputed {
		c.event(clusterEvent(id, api.ReasonNone, "still uses address "+d.Address.String()+" for "+d.Service.Name()+", although it belongs to another service now"))
	}
}

// setLiveness passes to the netbook whether the cluster has reported and whether it is silent.
func (c *network) setLiveness(id api.ClusterID) {
	heard, silent := c.clusters.Liveness(id)
	c.applyNet(c.net.SetLiveness(c.netNow(), netView{&c.state}, id, heard, silent))
}

// namesChanged passes to the netbook the services that an application had before and has now.
func (c *network) namesChanged(before, after []api.ServiceID) {
	c.applyNet(c.net.SetServices(c.netNow(), netView{&c.state}, before, after))
}
