package link

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// shape limits sending by the device to mbit Mbit/s with a token bucket; 0 removes the limit.
func shape(nl *netlink.Handle, dev netlink.Link, mbit int64) error {
	if mbit == 0 {
		if dev.Attrs().Index == 0 {
			return nil
		}
		return unshape(nl, dev)
	}
	rate := uint64(mbit) * 1e6 / 8
	burst := burstOf(rate)
	err := nl.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: dev.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate, Buffer: netlink.Xmittime(rate, burst), Limit: burst + uint32(min(rate/20, 1<<30)),
	})
	return wrap(err, "limit %s to %d Mbit/s", dev.Attrs().Name, mbit)
}

// burstOf returns the size of the bucket in bytes: what the rate allows in 10 ms, the coarsest
// timer of kernels, but at least one packet of the largest size of segmentation offload. The queue
// holds 50 ms.
func burstOf(rate uint64) uint32 {
	const largest = 64 << 10
	return uint32(min(max(rate/100, largest+largest/4), 1<<30))
}

func unshape(nl *netlink.Handle, dev netlink.Link) error {
	qs, err := nl.QdiscList(dev)
	if err != nil {
		return fmt.Errorf("list queues of %s: %w", dev.Attrs().Name, err)
	}
	for _, q := range qs {
		if q.Type() != "tbf" || q.Attrs().Parent != netlink.HANDLE_ROOT {
			continue
		}
		if err := unlessNone(nl.QdiscDel(q)); err != nil {
			return fmt.Errorf("remove limit of %s: %w", dev.Attrs().Name, err)
		}
	}
	return nil
}
