package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// layout is LAYOUT of bpf/types.h.
const layout = 5

// A place for a flow takes flowCost bytes of kernel memory, including its part of the index.
// 1/1024 of the machine's memory is for connections, as much for other answered flows, and as
// much for unanswered ones, within these bounds. An entry of a hash map takes entryCost bytes
// in advance; no hash map has more than 1/1024.
const (
	flowCost  = 160 + 64/kinds
	minFlows  = 1 << 12
	entryCost = 16
	kinds     = 3 // of flows, each with places of its own
	sharers   = 4 // one address may use 1/sharers of the places of a kind
)

var maxFlows uint32 = 1 << 16 // of a kind; less in tests that fill the maps

func fit(spec *ebpf.CollectionSpec, memory uint64) {
	flows := uint32(minFlows)
	for flows < maxFlows && uint64(flows)*2*flowCost <= memory/1024 {
		flows *= 2
	}
	spec.Maps["tl_flows"].MaxEntries = flows * kinds
	spec.Maps["tl_index"].MaxEntries = flows
	for _, m := range spec.Maps {
		for m.Type == ebpf.Hash && uint64(m.MaxEntries)*entryCost > memory/1024 {
			m.MaxEntries /= 2
		}
	}
}

// Available returns why the kernel cannot run the plane (ErrUnavailable); nil means that it
// can. It leaves nothing behind.
func Available() error {
	var o objectsObjects
	if err := load(&o, nil); err != nil {
		return err
	}
	defer o.Close()
	return attachable()
}

// attachable returns why programs cannot be attached to devices (ErrUnavailable); nil means that they can.
func attachable() error {
	if _, err := (tcx{}).attached(hook{device: 1}); err == nil || !errors.Is(err, ebpf.ErrNotSupported) {
		return nil
	}
	// An existing clsact of the loopback device stays.
	lo := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: 1, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	switch err := netlink.QdiscAdd(lo); {
	case errors.Is(err, unix.EEXIST):
		return nil
	case err != nil:
		return fmt.Errorf("kernel has neither tcx nor clsact: %w: %w", err, api.ErrUnavailable)
	}
	return netlink.QdiscDel(lo)
}

// load loads the programs, with maps of an earlier start if given. It fails with
// ebpf.ErrMapIncompatible if the maps have another layout.
func load(o *objectsObjects, maps map[string]*ebpf.Map) error {
	spec, err := loadObjects()
	if err != nil {
		return fmt.Errorf("read the programs: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return fmt.Errorf("read the machine's memory: %w", err)
	}
	fit(spec, uint64(info.Totalram)*uint64(info.Unit))
	replace := map[string]*ebpf.Map{}
	for name, m := range maps {
		if spec.Maps[name] != nil {
			replace[name] = m
		}
	}
	err = spec.LoadAndAssign(o, &ebpf.CollectionOptions{MapReplacements: replace})
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return err
	}
	if err != nil {
		return fmt.Errorf("kernel refuses the programs: %w: %w", err, api.ErrUnavailable)
	}
	return nil
}
