package netbench

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/relay"
)

func init() { roles["relay"] = as(runRelay) }

type relayOrder struct {
	Listen netip.AddrPort
	Slots  []uint32
}

// relayAddr is the address of the relay, on the host between the nodes.
var relayAddr = netip.AddrPortFrom(hostBetween, 7443)

// Within a namespace, ticket and secret of a slot need not be secure.
func ticketOf(slot uint32) uint64 { return 1000 + uint64(slot) }

var relaySecret = []byte("thirty-two bytes of no secrecy..")

func runRelay(ctx context.Context, o relayOrder, ready func()) (any, error) {
	r, err := relay.New(relay.Options{Listen: o.Listen})
	if err != nil {
		return nil, err
	}
	for _, s := range o.Slots {
		r.Set(s, relay.Slot{Node: api.NodeID(fmt.Sprintf("n%d", s)), Ticket: ticketOf(s), Secret: relaySecret})
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	ready()
	select {
	case <-ctx.Done():
		return nil, nil
	case err := <-ended:
		return nil, err
	}
}
