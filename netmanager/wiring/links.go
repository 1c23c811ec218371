package wiring

import (
	"context"
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
	"github.com/treeline-edge/treeline/netmanager/link"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// links keeps the machine's devices and routes as the core wants them. Only orders
// calls it, one call at a time; what it says of instances anybody may ask.
type links struct {
	link *link.Links
	data *os.Root
	log  *slog.Logger
	// clear are the machine's addresses on networks that the operator called clear.
	clear func() []netip.Addr

	node  plane.Node
	peers map[api.PeerKey]plane.Peer

	ranges atomic.Pointer[api.NetRanges] // node's, for whoever asks

	mu sync.Mutex // guards the fields below
	// wanted are attachments of this life. Those of earlier ones are found by their
	// devices and never made anew: the path of their namespace may be another's now.
	wanted map[netip.Addr]wanted
	here   map[netip.Addr]int // the index of an instance's device
}

// wanted is an attachment, and whose it is.
type wanted struct {
	of api.Key
	link.Attachment
}

func newLinks(prefix string, data *os.Root, log *slog.Logger) (*links, error) {
	l, err := link.New(prefix)
	if err != nil {
		return nil, err
	}
	return &links{
		link: l, data: data, log: log, clear: func() []netip.Addr { return nil }, peers: map[api.PeerKey]plane.Peer{},
		wanted: map[netip.Addr]wanted{}, here: map[netip.Addr]int{},
	}, nil
}

// want notes an attachment that connect, or the core's word of it, whichever comes
// first, shall make.
func (l *links) want(a api.Attach, at api.Attached) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted[at.Address] = wanted{a.Key, link.Attachment{
		Address: at.Address, Address6: at.Address6, NetNS: a.NetNS, MTU: at.MTU,
		In: a.BandwidthIn, Out: a.BandwidthOut, Localhost: len(a.Ports) > 0,
	}}
}

// unwant is its opposite. The device goes when the kernel is told, by when the address may
// be somebody else's.
func (l *links) unwant(k api.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.wanted, func(_ netip.Addr, w wanted) bool { return w.of == k })
}

// missing is why an instance has no device, nil if it has one.
func (l *links) missing(a netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.here[a] == 0 {
		return fmt.Errorf("its network namespace is gone: %w", api.ErrGone)
	}
	return nil
}

// local reports whether an instance with that address, or its twin, is here.
func (l *links) local(a netip.Addr) bool {
	a = l.untwin(a)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.here[a] != 0
}

// connect makes an attachment that is wanted, and reports whether the device is
// another than before.
func (l *links) connect(a netip.Addr) (anew bool, err error) {
	l.mu.Lock()
	w, ok := l.wanted[a]
	was := l.here[a]
	l.mu.Unlock()
	if !ok {
		return false, fmt.Errorf("%s was detached meanwhile: %w", a, api.ErrConflict)
	}
	if err := l.link.Attach(w.Attachment); err != nil {
		l.gone(a)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("the network namespace %s is not there: %w: %w", w.NetNS, api.ErrGone, err)
		}
		return false, err
	}
	now := l.find(a)
	return now != was, nil
}

// find looks for an instance's device and notes it.
func (l *links) find(a netip.Addr) int {
	index := 0
	if dev, err := net.InterfaceByName(plane.Device(l.node.Prefix, a)); err == nil {
		index = dev.Index
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.here[a] = index; index == 0 {
		delete(l.here, a)
	}
	return index
}

func (l *links) gone(a netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.here, a)
}

// present reports whether the instance has a device, and makes it one if it is to
// have one in this life.
func (l *links) present(a netip.Addr) bool {
	if l.find(a) != 0 {
		return true
	}
	l.mu.Lock()
	_, ok := l.wanted[a]
	l.mu.Unlock()
	if !ok {
		return false
	}
	if _, err := l.connect(a); err != nil {
		l.log.Warn("instance has no device", "address", a, "err", err)
		return false
	}
	return true
}

// Sync makes the machine what s says, and takes away what an earlier life left. It
// returns what the plane can be told of: instances without a device are left out.
func (l *links) Sync(_ context.Context, s plane.State) (plane.State, error) {
	l.node, l.peers = s.Node, map[api.PeerKey]plane.Peer{}
	if err := l.tidy(s.Endpoints); err != nil {
		return s, err
	}
	s.Endpoints = slices.DeleteFunc(slices.Clone(s.Endpoints), func(e plane.Endpoint) bool { return !l.present(e.Address) })
	if err := l.setup(); err != nil {
		return s, err
	}
	for _, p := range s.Peers {
		l.peers[p.Key] = p
	}
	return s, l.link.SetPeers(s.Node, s.Peers)
}

// tidy takes away the devices of instances that are not there any more.
func (l *links) tidy(endpoints []plane.Endpoint) error {
	found, err := l.link.List()
	if err != nil {
		return err
	}
	keep := map[netip.Addr]bool{}
	for _, e := range endpoints {
		keep[e.Address] = true
	}
	for _, f := range found {
		if !keep[f.Address] {
			l.log.Info("an earlier life's device is removed", "device", f.Device)
			err = errors.Join(err, l.drop(f.Address))
		}
	}
	return err
}

func (l *links) drop(a netip.Addr) error {
	l.gone(a)
	return l.link.Detach(a)
}

// untwin is the IPv4 address that stands for one of the ranges; the zero Addr for any other.
func (l *links) untwin(a netip.Addr) netip.Addr {
	r := l.ranges.Load()
	if r == nil {
		return netip.Addr{}
	}
	return r.Untwin(a)
}

func (l *links) setup() error {
	n, local := l.node, netip.Addr{}
	l.ranges.Store(&n.Ranges)
	for _, a := range l.clear() {
		if a.Is4() {
			local = a
			break
		}
	}
	if !local.IsValid() {
		n.VXLAN = 0 // nobody is reached by it from here
	}
	if err := l.remember(); err != nil {
		return err
	}
	return l.link.Setup(n, local)
}

// Prepare makes what a change's sets need, and returns what the plane can be told.
func (l *links) Prepare(_ context.Context, c plane.Change) (plane.Change, error) {
	if c.Node != nil {
		l.node = *c.Node
		if err := l.setup(); err != nil {
			return c, err
		}
	}
	c.SetEndpoints = slices.DeleteFunc(slices.Clone(c.SetEndpoints), func(e plane.Endpoint) bool { return !l.present(e.Address) })
	for _, p := range c.SetPeers {
		if err := l.link.SetPeer(l.node, p); err != nil {
			return c, err
		}
		old := l.peers[p.Key]
		old.Subnets = slices.DeleteFunc(slices.Clone(old.Subnets), func(s netip.Prefix) bool { return slices.Contains(p.Subnets, s) || l.routed(p.Key, s) })
		if old.Via == p.Via {
			old.Via = netip.Addr{}
		}
		l.peers[p.Key] = p
		if err := l.link.DropPeer(l.node, old); err != nil {
			return c, err
		}
	}
	return c, nil
}

// routed reports whether another peer has the subnet.
func (l *links) routed(but api.PeerKey, s netip.Prefix) bool {
	for k, p := range l.peers {
		if k != but && slices.Contains(p.Subnets, s) {
			return true
		}
	}
	return false
}

// Tidy takes away what a change's drops have left without use.
func (l *links) Tidy(_ context.Context, c plane.Change) error {
	var errs []error
	for _, a := range c.DropEndpoints {
		if !slices.ContainsFunc(c.SetEndpoints, func(e plane.Endpoint) bool { return e.Address == a }) {
			errs = append(errs, l.drop(a))
		}
	}
	for _, k := range c.DropPeers {
		p, ok := l.peers[k]
		if !ok || slices.ContainsFunc(c.SetPeers, func(p plane.Peer) bool { return p.Key == k }) {
			continue
		}
		delete(l.peers, k)
		p.Subnets = slices.DeleteFunc(slices.Clone(p.Subnets), func(s netip.Prefix) bool { return l.routed(k, s) })
		errs = append(errs, l.link.DropPeer(l.node, p))
	}
	return errors.Join(errs...)
}

const forwardingFile = "forwarding.json"

// remember keeps how the machine was before our first life.
func (l *links) remember() error {
	if _, err := l.data.Stat(forwardingFile); !errors.Is(err, fs.ErrNotExist) {
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
	return ca.WriteFile(l.data, forwardingFile, append(text, '\n'), 0o600)
}

// remove takes everything of ours from the machine, which forwards as it did before.
func (l *links) remove() error {
	was := link.Forwarding{}
	text, err := l.data.ReadFile(forwardingFile)
	switch {
	case errors.Is(err, fs.ErrNotExist): // nobody has changed it
		if was, err = link.Forwards(); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(text, &was); err != nil {
			return fmt.Errorf("read how the machine was: %w", err)
		}
	}
	if err := l.link.Remove(was); err != nil {
		return err
	}
	if err := l.data.Remove(forwardingFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ownNetwork reports whether a namespace is the machine's own.
func ownNetwork(path string) (bool, error) {
	a, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("the network namespace %s is not there: %w", path, api.ErrGone)
	}
	if err != nil {
		return false, fmt.Errorf("look at the network namespace %s: %w: %w", path, api.ErrInvalid, err)
	}
	b, err := os.Stat("/proc/self/ns/net")
	return err == nil && os.SameFile(a, b), err
}
