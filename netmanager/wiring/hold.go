package wiring

import (
	"context"
	"net/netip"

	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

type hold struct {
	dev  tun.Device
	post func(overlay.Input)
}

func (m *manager) openHold() (*hold, error) {
	dev, err := tun.Open(m.holdDevice(), 1500)
	return &hold{dev, m.post}, err
}

func (h *hold) Release(netip.Addr)      {}
func (h *hold) Refuse(netip.Addr, bool) {}
func (h *hold) Answered(string)         {}
func (h *hold) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { h.dev.Close() })()
	b := make([]byte, tun.FrameLen)
	for {
		n, err := h.dev.Read(b, nil)
		if err != nil {
			return nil
		}
		if p := b[offload.VnetLen:n]; len(p) >= 20 && p[0]>>4 == 4 {
			src, dst := netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
			h.post(overlay.Miss{Local: src, Remote: dst})
			h.post(overlay.Miss{Local: dst, Remote: src})
		}
	}
}
