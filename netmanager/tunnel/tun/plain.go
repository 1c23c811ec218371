package tun

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/songgao/water"

	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
)

// plain is a device without vnet headers, from the module water. Every kernel with TUN supports it. It
// carries one packet at a time, each with its checksum.
type plain struct {
	*water.Interface
	out []byte
}

func openPlain(name string) (Device, error) {
	i, err := water.New(water.Config{
		DeviceType:             water.TUN,
		PlatformSpecificParams: water.PlatformSpecificParams{Name: name, Persist: true},
	})
	if err != nil {
		return nil, fmt.Errorf("open without vnet headers: %w", err)
	}
	return &plain{Interface: i}, nil
}

func (p *plain) Joins() (tcp, udp bool) { return false, false }
func (p *plain) Partial() bool          { return false }

func (p *plain) Read(b []byte, idle func()) (int, error) {
	if idle != nil {
		idle() // the module does not report when Read waits
	}
	clear(b[:offload.VnetLen])
	n, err := p.Interface.Read(b[offload.VnetLen:])
	if errors.Is(err, os.ErrClosed) {
		err = net.ErrClosed
	}
	return n + offload.VnetLen, err
}

func (p *plain) Write(parts [][]byte) error {
	b := parts[1]
	if len(parts) > 2 {
		p.out = p.out[:0]
		for _, part := range parts[1:] {
			p.out = append(p.out, part...)
		}
		b = p.out
	}
	_, err := p.Interface.Write(b)
	return err
}
