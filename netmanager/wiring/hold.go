package wiring

import (
	"net/netip"

	"github.com/treeline-edge/treeline/netmanager/hold"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

// holdMTU is what instances' devices have at most, so that all that they send can
// be held.
const holdMTU = 1500

func (m *manager) openHold() (*hold.Hold, error) {
	dev, err := tun.Open(m.holdDevice(), holdMTU)
	if err != nil {
		return nil, err
	}
	return hold.New(dev, hold.Config{
		Local: m.links.local, Untwin: m.links.untwin,
		Miss: func(local, remote netip.Addr) { m.post(overlay.Miss{Local: local, Remote: remote}) },
	}), nil
}
