package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/link"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Devices applies the core's devices and routes to the machine. The exported methods are safe for
// concurrent use. Only the executor calls the others, one at a time.
type Devices struct {
	link  *link.Links
	data  *os.Root
	log   *slog.Logger
	local func() netip.Addr

	node  plane.Node
	peers map[api.PeerKey]plane.Peer

	ranges atomic.Pointer[wire.NetRanges] // node's

	mu sync.Mutex // guards the fields below
	// wanted are the attachments since the start. Earlier attachments are found by their devices
	// and never created again, because the path of their namespace may be another workload's now.
	wanted map[netip.Addr]wanted
	here   map[netip.Addr]int // the index of an instance's device
}

type wanted struct {
	of wire.Key
	link.Attachment
}

// NewDevices returns the devices whose names begin with prefix. It saves the machine's former
// forwarding settings in data. local returns the machine's address for VXLAN, the zero Addr if it
// has none.
func NewDevices(prefix string, data *os.Root, local func() netip.Addr, log *slog.Logger) (*Devices, error) {
	l, err := link.New(prefix)
	if err != nil {
		return nil, err
	}
	return &Devices{
		link: l, data: data, log: log, local: local, peers: map[api.PeerKey]plane.Peer{},
		wanted: map[netip.Addr]wanted{}, here: map[netip.Addr]int{},
	}, nil
}

// Close frees the netlink sockets. The devices stay.
func (d *Devices) Close() { d.link.Close() }

// Want records an attachment. Executor.Connect or the core's order creates it, whichever comes
// first.
func (d *Devices) Want(a wire.Attach, at wire.Attached) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted[at.Address] = wanted{a.Key, link.Attachment{
		Address: at.Address, Address6: at.Address6, NetNS: a.NetNS, MTU: at.MTU,
		In: a.BandwidthIn, Out: a.BandwidthOut, Localhost: len(a.Ports) > 0,
	}}
}

// Unwant removes the record of Want by its key, because the address may be another instance's now.
// The core's order deletes the device.
func (d *Devices) Unwant(k wire.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.wanted, func(_ netip.Addr, w wanted) bool { return w.of == k })
}

// Missing returns why an instance has no device; nil if it has one.
func (d *Devices) Missing(a netip.Addr) error {
	if !d.has(a) {
		return fmt.Errorf("the instance's network namespace is gone: %w", api.ErrGone)
	}
	return nil
}

// Local reports whether an address of either family is an instance's on this node.
func (d *Devices) Local(a netip.Addr) bool { return d.has(d.To4(a)) }

func (d *Devices) has(a netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.here[a] != 0
}

// To4 returns the IPv4 address that an address of the overlay's ranges stands for; the
// zero Addr for any other.
func (d *Devices) To4(a netip.Addr) netip.Addr {
	r := d.ranges.Load()
	if r == nil {
		return netip.Addr{}
	}
	return r.To4(a)
}

// connect creates a wanted attachment, and reports whether its device is new.
func (d *Devices) connect(a netip.Addr) (created bool, err error) {
	d.mu.Lock()
	w, ok := d.wanted[a]
	was := d.here[a]
	d.mu.Unlock()
	if !ok {
		return false, fmt.Errorf("%s was detached meanwhile: %w", a, api.ErrConflict)
	}
	if err := d.link.Attach(w.Attachment); err != nil {
		d.gone(a)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("network namespace %s does not exist: %w: %w", w.NetNS, api.ErrGone, err)
		}
		return false, err
	}
	return d.find(a) != was, nil
}

// find looks for an instance's device, records its index and returns it; 0 means none.
func (d *Devices) find(a netip.Addr) int {
	index := 0
	if dev, err := net.InterfaceByName(plane.Device(d.node.Prefix, a)); err == nil {
		index = dev.Index
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.here[a] = index; index == 0 {
		delete(d.here, a)
	}
	return index
}

func (d *Devices) gone(a netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.here, a)
}

// present reports whether an instance has a device, and creates a wanted one.
func (d *Devices) present(a netip.Addr) bool {
	if d.find(a) != 0 {
		return true
	}
	d.mu.Lock()
	_, ok := d.wanted[a]
	d.mu.Unlock()
	if !ok {
		return false
	}
	if _, err := d.connect(a); err != nil {
		d.log.Warn("create an instance's device failed", "address", a, "err", err)
		return false
	}
	return true
}

func (d *Devices) withDevices(all []plane.Endpoint) []plane.Endpoint {
	return slices.DeleteFunc(slices.Clone(all), func(e plane.Endpoint) bool { return !d.present(e.Address) })
}

// sync makes the devices match s, and deletes others that an earlier start left. It returns the
// state for the data plane, without the instances that have no device.
func (d *Devices) sync(s plane.State) (plane.State, error) {
	d.node, d.peers = s.Node, map[api.PeerKey]plane.Peer{}
	if err := d.deleteOthers(s.Endpoints); err != nil {
		return s, err
	}
	s.Endpoints = d.withDevices(s.Endpoints)
	if err := d.setup(); err != nil {
		return s, err
	}
	for _, p := range s.Peers {
		d.peers[p.Key] = p
	}
	return s, d.link.SetPeers(s.Node, s.Peers)
}

func (d *Devices) deleteOthers(endpoints []plane.Endpoint) error {
	found, err := d.link.List()
	if err != nil {
		return err
	}
	keep := map[netip.Addr]bool{}
	for _, e := range endpoints {
		keep[e.Address] = true
	}
	for _, f := range found {
		if !keep[f.Address] {
			d.log.Info("leftover device deleted", "device", f.Device)
			err = errors.Join(err, d.drop(f.Address))
		}
	}
	return err
}

func (d *Devices) drop(a netip.Addr) error {
	d.gone(a)
	return d.link.Detach(a)
}

func (d *Devices) setup() error {
	n, local := d.node, d.local()
	d.ranges.Store(&n.Ranges)
	if !local.IsValid() {
		n.VXLAN = 0 // no peer can be reached by VXLAN from here
	}
	if err := d.saveForwarding(); err != nil {
		return err
	}
	return d.link.Setup(n, local)
}

// prepare creates the devices and routes that a change needs, and returns the change for the
// data plane, without the instances that have no device.
func (d *Devices) prepare(c plane.Change) (plane.Change, error) {
	if c.Node != nil {
		d.node = *c.Node
		if err := d.setup(); err != nil {
			return c, err
		}
	}
	c.SetEndpoints = d.withDevices(c.SetEndpoints)
	for _, p := range c.SetPeers {
		if err := d.link.SetPeer(d.node, p); err != nil {
			return c, err
		}
		old := d.peers[p.Key]
		old.Subnets = slices.DeleteFunc(slices.Clone(old.Subnets), func(s netip.Prefix) bool { return slices.Contains(p.Subnets, s) || d.routed(p.Key, s) })
		if old.Via == p.Via {
			old.Via = netip.Addr{}
		}
		d.peers[p.Key] = p
		if err := d.link.DropPeer(d.node, old); err != nil {
			return c, err
		}
	}
	return c, nil
}

// routed reports whether a peer other than except has the subnet.
func (d *Devices) routed(except api.PeerKey, s netip.Prefix) bool {
	for k, p := range d.peers {
		if k != except && slices.Contains(p.Subnets, s) {
			return true
		}
	}
	return false
}

// tidy deletes the devices and routes that a change has left unused.
func (d *Devices) tidy(c plane.Change) error {
	var errs []error
	for _, a := range c.DropEndpoints {
		if !slices.ContainsFunc(c.SetEndpoints, func(e plane.Endpoint) bool { return e.Address == a }) {
			errs = append(errs, d.drop(a))
		}
	}
	for _, k := range c.DropPeers {
		p, ok := d.peers[k]
		if !ok || slices.ContainsFunc(c.SetPeers, func(p plane.Peer) bool { return p.Key == k }) {
			continue
		}
		delete(d.peers, k)
		p.Subnets = slices.DeleteFunc(slices.Clone(p.Subnets), func(s netip.Prefix) bool { return d.routed(k, s) })
		errs = append(errs, d.link.DropPeer(d.node, p))
	}
	return errors.Join(errs...)
}

const forwardingFile = "forwarding.json"

// saveForwarding saves the machine's forwarding settings before the first start, once.
func (d *Devices) saveForwarding() error {
	if _, err := d.data.Stat(forwardingFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	was, err := link.Forwards()
	if err != nil {
		return err
	}
	text, err := json.Marshal(was)
	if err != nil {
		return err
	}
	return ca.WriteFile(d.data, forwardingFile, append(text, '\n'), 0o600)
}

// Remove deletes all devices, and restores the machine's forwarding settings.
func (d *Devices) Remove() error {
	was := link.Forwarding{}
	text, err := d.data.ReadFile(forwardingFile)
	switch {
	case errors.Is(err, fs.ErrNotExist): // it was never changed
		if was, err = link.Forwards(); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(text, &was); err != nil {
			return fmt.Errorf("read %s: %w", forwardingFile, err)
		}
	}
	if err := d.link.Remove(was); err != nil {
		return err
	}
	if err := d.data.Remove(forwardingFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
