package wiring

import (
	"context"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// switchEvery is the interval at which the nodes' brokers are checked during a switch.
const switchEvery = 2 * time.Second

// watchSwitch logs the nodes that have not confirmed the cluster's brokers, until all have:
// before a switch, nodes that have not received the next broker; after it, nodes that have
// only received other brokers. Those nodes reconnect after they have requested the brokers
// over HTTPS, which takes half a minute or more.
func (o *orchestrator) watchSwitch(ctx context.Context) error {
	all := o.cfg.Broker.known()
	logged := -1 // number of nodes in the last warning
	tick := time.NewTicker(switchEvery)
	defer tick.Stop()
	for {
		var nodes []api.Node
		if err := o.loop.Read(ctx, func() { nodes = o.core.Nodes() }); err != nil {
			return nil // the daemon stops
		}
		unaware := unawareOf(nodes, o.cfg.Broker)
		switch {
		case len(unaware) == 0 && (logged > 0 || o.cfg.Broker.Next != ""):
			o.log.Info("every node knows the cluster's brokers", "brokers", all, "nodes", len(nodes))
			fallthrough
		case len(unaware) == 0:
			<-ctx.Done() // returning would end the daemon
			return nil
		case len(unaware) != logged:
			logged = len(unaware)
			o.log.Warn("nodes do not know the cluster's brokers yet", "brokers", all, "count", logged, "of", len(nodes), "nodes", unaware[:min(logged, 20)])
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// unawareOf returns the nodes that have not confirmed the brokers that they need.
func unawareOf(nodes []api.Node, b BrokerConfig) []api.NodeID {
	all := b.known()
	var out []api.NodeID
	for _, n := range nodes {
		lacks := slices.ContainsFunc(b.now(), func(broker string) bool { return !slices.Contains(n.Brokers, broker) })
		if b.Next != "" && !slices.Equal(n.Brokers, all) || len(n.Brokers) > 0 && lacks {
			out = append(out, n.ID)
		}
	}
	return out
}
