package dataplane

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Protocols are the protocols of published ports.
var Protocols = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

const maxWeight = 16

// NotSynced is the error of a method that needs an earlier Sync.
func NotSynced(method string) error {
	return fmt.Errorf("%s of a data plane before its first sync: %w", method, api.ErrInvalid)
}

// CheckPrefix returns an error (ErrInvalid) for the state of a plane with another prefix.
func CheckPrefix(prefix string, n plane.Node) error {
	if n.Prefix != prefix {
		return fmt.Errorf("sync plane of prefix %q with a state of prefix %q: %w", prefix, n.Prefix, api.ErrInvalid)
	}
	return nil
}

// Check returns an error (ErrInvalid) for a change that planes do not support.
func Check(c plane.Change) error {
	four := func(what string, a netip.Addr) error {
		if !a.Is4() {
			return fmt.Errorf("address %s of %s is not IPv4: %w", a, what, api.ErrInvalid)
		}
		return nil
	}
	for _, s := range c.SetServices {
		if err := four("a service", s.Address); err != nil {
			return err
		}
		for _, b := range s.Backends {
			if err := four("a backend of "+s.Address.String(), b.Address); err != nil {
				return err
			}
			if b.Weight < 1 || b.Weight > maxWeight {
				return fmt.Errorf("backend %s of %s has weight %d, not 1 to %d: %w", b.Address, s.Address, b.Weight, maxWeight, api.ErrInvalid)
			}
		}
	}
	for _, e := range c.SetEndpoints {
		if err := four("an endpoint", e.Address); err != nil {
			return err
		}
		for _, m := range e.Ports {
			if Protocols[m.Protocol] == 0 {
				return fmt.Errorf("port %d of %s has protocol %q, not tcp, udp or sctp: %w", m.Host, e.Address, m.Protocol, api.ErrInvalid)
			}
		}
	}
	for _, s := range c.SetSources {
		if err := four("a source", s.Address); err != nil {
			return err
		}
	}
	for _, p := range c.SetPeers {
		for _, s := range p.Subnets {
			if err := four("a subnet of peer "+p.Key.String(), s.Addr()); err != nil {
				return err
			}
		}
	}
	return nil
}
