package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

func (p *Plane) setEndpoints(x *tx, c plane.Change, links *links, all bool) {
	for _, e := range c.SetEndpoints {
		p.setEndpoint(x, e, links, all)
		if len(e.Ports) > 0 {
			assign(x, p.ports, e.Address, &e.Ports)
		} else {
			assign(x, p.ports, e.Address, nil)
		}
	}
	for _, a := range without(c.DropEndpoints, c.SetEndpoints, func(v plane.Endpoint) netip.Addr { return v.Address }) {
		if old, had := p.endpoints.have[be32(a)]; had {
			p.endpoints.drop(x, be32(a))
			p.dropDevice(x, old.Ifindex, be32(a))
			assign(x, p.ports, a, nil)
		}
	}
	if all {
		p.devices.dropUnless(x, func(i, a uint32) bool { return p.endpoints.have[a].Ifindex == i })
	}
}

// setEndpoint attaches an endpoint's programs before it adds the endpoint, so that they check its
// packets from the start. If all is set and the device is gone, it keeps the ident of the address.
func (p *Plane) setEndpoint(x *tx, e plane.Endpoint, links *links, all bool) {
	a, d := be32(e.Address), links.get(e.Device)
	gone := d == nil
	if gone && !all {
		x.fail(fmt.Errorf("find device %s of endpoint %s: %w", e.Device, e.Address, api.ErrNotFound))
	}
	if x.err != nil {
		return
	}
	v, old := objectsEndpoint{Ident: uint32(e.Ident)}, p.endpoints.have[a]
	if !gone {
		v.Ifindex = uint32(d.Attrs().Index)
		queued, err := links.queued(d)
		if x.fail(err) {
			return
		}
		if queued {
			v.Queued = 1
		}
		for h, prog := range p.endpointPrograms(d.Attrs().Index) {
			err := p.attach(x, h, prog, all)
			if all && errors.Is(err, unix.ENODEV) { // removed since it was listed
				gone = true
			} else if x.fail(err) {
				return
			}
		}
	}
	if gone {
		p.endpoints.set(x, a, objectsEndpoint{Ident: v.Ident, Queued: 1})
		return
	}
	p.devices.set(x, v.Ifindex, a)
	p.endpoints.set(x, a, v)
	if old.Ifindex != v.Ifindex {
		p.dropDevice(x, old.Ifindex, a)
	}
}

// dropDevice drops a device if it is that of the endpoint. The programs stay as long as the
// device, and let nothing pass.
func (p *Plane) dropDevice(x *tx, device, endpoint uint32) {
	if p.devices.have[device] == endpoint {
		p.devices.drop(x, device)
	}
}

func (l *links) queued(d netlink.Link) (bool, error) {
	if l.queues == nil {
		all, err := netlink.QdiscList(nil)
		if err != nil {
			return false, fmt.Errorf("list queueing disciplines: %w", err)
		}
		l.queues = map[int]bool{}
		for _, q := range all {
			if t := q.Type(); t != "noqueue" && t != "clsact" {
				l.queues[q.Attrs().LinkIndex] = true
			}
		}
	}
	return l.queues[d.Attrs().Index], nil
}

func (p *Plane) endpointPrograms(device int) map[hook]*ebpf.Program {
	return map[hook]*ebpf.Program{{device, false}: p.o.TlLeave, {device, true}: p.o.TlLast}
}

// attachDevices attaches the programs of all devices except those of endpoints, and detaches others.
func (p *Plane) attachDevices(x *tx, all bool) {
	if x.err != nil {
		return
	}
	want := map[hook]*ebpf.Program{}
	if p.set.Hold != 0 {
		want[hook{int(p.set.Hold), false}] = p.o.TlHeld
	}
	if p.set.Tunnel != 0 {
		want[hook{int(p.set.Tunnel), false}] = p.o.TlHeld
	}
	if p.set.Vxlan != 0 {
		want[hook{int(p.set.Vxlan), false}] = p.o.TlArrive
	}
	for _, v := range p.peers {
		if v.device > 1 && v.device != int(p.set.Tunnel) && v.device != int(p.set.Hold) {
			want[hook{v.device, false}] = p.o.TlArrive
		}
	}
	for h, prog := range want {
		if x.fail(p.attach(x, h, prog, all)) {
			return
		}
	}
	if len(p.hooks) > 2*(2*len(p.devices.have)+len(want))+gonePrograms {
		p.removeGone()
	}
	for h, prog := range maps.Clone(p.hooks) {
		if want[h] != nil || prog == p.o.TlLeave || prog == p.o.TlLast {
			continue
		}
		if prog != p.o.TlArrive && prog != p.o.TlHeld { // of an earlier start
			info, err := prog.Info()
			if err == nil && (info.Name == "tl_leave" || info.Name == "tl_last") {
				err := p.attach(x, h, p.endpointPrograms(h.device)[h], all)
				if !errors.Is(err, unix.ENODEV) && x.fail(err) { // attach has removed a device that is gone
					return
				}
				continue
			}
		}
		if x.fail(p.detach(x, h)) {
			return
		}
	}
}

// gonePrograms is the number of records, beyond twice those needed, that cause removeGone.
const gonePrograms = 64

// removeGone removes the records of programs on endpoints' devices that are gone. The kernel
// has removed the programs.
func (p *Plane) removeGone() {
	for h := range p.hooks {
		if _, known := p.devices.have[uint32(h.device)]; known {
			continue
		}
		var none netlink.LinkNotFoundError
		if _, err := netlink.LinkByIndex(h.device); errors.As(err, &none) {
			delete(p.hooks, h)
		}
	}
}

// attach attaches a program to a hook. If sure is set, it reads from the kernel whether the program
// is there; otherwise it relies on p.hooks.
func (p *Plane) attach(x *tx, h hook, prog *ebpf.Program, sure bool) error {
	old := p.hooks[h]
	if old != nil && sure {
		info, err := old.Info()
		if err != nil {
			return fmt.Errorf("read a program: %w", err)
		}
		id, _ := info.ID()
		if ids, err := p.attacher.attached(h); err == nil && !slices.Contains(ids, id) {
			old = nil
		}
	}
	if old == prog {
		return nil
	}
	err := p.attacher.attach(h, prog, old)
	if old != nil && errors.Is(err, os.ErrNotExist) { // it was removed with its device
		err = p.attacher.attach(h, prog, nil)
	}
	if errors.Is(err, unix.ENODEV) {
		delete(p.hooks, h) // the kernel removed the program with its device
	}
	if err != nil {
		return fmt.Errorf("attach a program to device %d: %w", h.device, err)
	}
	p.hooks[h] = prog
	x.onRollback(func() {
		if old == nil {
			_ = p.attacher.detach(h, prog)
			delete(p.hooks, h)
			return
		}
		_ = p.attacher.attach(h, old, prog)
		p.hooks[h] = old
	})
	return nil
}

func (p *Plane) detach(x *tx, h hook) error {
	old := p.hooks[h]
	if err := p.attacher.detach(h, old); err != nil && !notFound(err) {
		return fmt.Errorf("detach a program from device %d: %w", h.device, err)
	}
	delete(p.hooks, h)
	x.onRollback(func() {
		if p.attacher.attach(h, old, nil) == nil {
			p.hooks[h] = old
		}
	})
	return nil
}

// notFound reports whether err means that the object to remove does not exist.
func notFound(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL)
}
