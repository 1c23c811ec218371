package ebpf

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hook is a place for programs on a device: ingress or egress.
type hook struct {
	device int
	egress bool
}

// attacher attaches programs to hooks, where they stay when the process ends. At most one of
// the plane's programs is in a hook: attach replaces old, which may be nil, without a gap.
type attacher interface {
	attach(h hook, p, old *ebpf.Program) error
	detach(h hook, p *ebpf.Program) error
	// attached returns the programs in a hook, including those of others. A missing device has
	// none.
	attached(h hook) ([]ebpf.ProgramID, error)
}

func newAttacher() attacher {
	if _, err := (tcx{}).attached(hook{device: 1}); err != nil {
		return classifier{}
	}
	return tcx{}
}

// tcx is the kernel's list of programs per hook, since Linux 6.6.
type tcx struct{}

func (tcx) at(h hook) ebpf.AttachType {
	if h.egress {
		return ebpf.AttachTCXEgress
	}
	return ebpf.AttachTCXIngress
}

func (t tcx) attach(h hook, p, old *ebpf.Program) error {
	o := link.RawAttachProgramOptions{Target: h.device, Program: p, Attach: t.at(h), Anchor: link.Head()}
	if old != nil {
		o.Anchor = link.ReplaceProgram(old)
	}
	return link.RawAttachProgram(o)
}

func (t tcx) detach(h hook, p *ebpf.Program) error {
	return link.RawDetachProgram(link.RawDetachProgramOptions{Target: h.device, Program: p, Attach: t.at(h)})
}

func (t tcx) attached(h hook) ([]ebpf.ProgramID, error) {
	all, err := link.QueryPrograms(link.QueryOptions{Target: h.device, Attach: t.at(h)})
	if err != nil {
		return nil, err
	}
	var ids []ebpf.ProgramID
	for _, p := range all.Programs {
		ids = append(ids, p.ID)
	}
	return ids, nil
}

// classifier is cls_bpf under a clsact queueing discipline, for older kernels.
type classifier struct{}

// The handle and priority of the plane's filters, which differ from those of others.
const (
	filterHandle   = 0x7472
	filterPriority = 0x7472
)

func (classifier) attrs(h hook) netlink.FilterAttrs {
	a := netlink.FilterAttrs{
		LinkIndex: h.device, Parent: netlink.HANDLE_MIN_INGRESS, Handle: filterHandle,
		Protocol: unix.ETH_P_ALL, Priority: filterPriority,
	}
	if h.egress {
		a.Parent = netlink.HANDLE_MIN_EGRESS
	}
	return a
}

func (c classifier) attach(h hook, p, _ *ebpf.Program) error {
	err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: h.device, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("add clsact: %w", err)
	}
	return netlink.FilterReplace(&netlink.BpfFilter{FilterAttrs: c.attrs(h), Fd: p.FD(), Name: "treeline", DirectAction: true})
}

// detach leaves an empty clsact, which does nothing and may be used by others now.
func (c classifier) detach(h hook, p *ebpf.Program) error {
	return netlink.FilterDel(&netlink.BpfFilter{FilterAttrs: c.attrs(h), Fd: p.FD()})
}

func (c classifier) attached(h hook) ([]ebpf.ProgramID, error) {
	a := c.attrs(h)
	all, err := netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: h.device}}, a.Parent)
	if err != nil {
		return nil, err
	}
	var ids []ebpf.ProgramID
	for _, f := range all {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Attrs().Priority == filterPriority {
			ids = append(ids, ebpf.ProgramID(b.Id))
		}
	}
	return ids, nil
}

// found are the plane's programs and maps of an earlier start in this network namespace.
type found struct {
	hooks map[hook]*ebpf.Program
	maps  map[string]*ebpf.Map
	known map[ebpf.ProgramID]*ebpf.Program // nil: not the plane's
}

func (f *found) Close() {
	for _, p := range f.known {
		if p != nil {
			p.Close()
		}
	}
	for _, m := range f.maps {
		m.Close()
	}
}

func find(a attacher, prefix string, links []netlink.Link) (*found, error) {
	f := &found{hooks: map[hook]*ebpf.Program{}, maps: map[string]*ebpf.Map{}, known: map[ebpf.ProgramID]*ebpf.Program{}}
	for _, l := range links {
		for _, egress := range []bool{false, true} {
			h := hook{l.Attrs().Index, egress}
			ids, err := a.attached(h)
			if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
				continue // removed meanwhile, or without hooks
			}
			for _, id := range ids {
				if p := f.look(id, prefix); p != nil {
					f.hooks[h] = p
				}
			}
			if err != nil {
				f.Close()
				return nil, fmt.Errorf("programs of %s: %w", l.Attrs().Name, err)
			}
		}
	}
	return f, nil
}

// look returns the program if it is of the plane with that prefix, and keeps its maps. It skips
// programs that are being removed.
func (f *found) look(id ebpf.ProgramID, prefix string) *ebpf.Program {
	if p, ok := f.known[id]; ok {
		return p
	}
	f.known[id] = nil
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil
	}
	ours := false
	defer func() {
		if !ours {
			p.Close()
		}
	}()
	info, err := p.Info()
	if err != nil || !strings.HasPrefix(info.Name, "tl_") {
		return nil
	}
	ids, _ := info.MapIDs()
	maps := map[string]*ebpf.Map{}
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		if i, err := m.Info(); err == nil && maps[i.Name] == nil {
			maps[i.Name] = m
			continue
		}
		m.Close()
	}
	ours = maps["tl_settings"] != nil && settingsPrefix(maps["tl_settings"]) == prefix
	for name, m := range maps {
		if ours && f.maps[name] == nil {
			f.maps[name] = m
			continue
		}
		m.Close()
	}
	if !ours {
		return nil
	}
	f.known[id] = p
	return p
}

// settingsPrefix returns the prefix in the settings; "" if they cannot be read.
func settingsPrefix(m *ebpf.Map) string {
	b, err := m.LookupBytes(uint32(0))
	if err != nil || len(b) < 16 {
		return ""
	}
	return strings.TrimRight(string(b[4:16]), "\x00")
}
