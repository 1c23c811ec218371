package tunnel

import "github.com/treeline-edge/treeline/netmanager/tunnel/offload"

// tooLong answers a packet that exceeds mtu with an ICMP error.
func (e *Engine) tooLong(packet []byte, mtu int) {
	reply := offload.TooBig(packet, mtu)
	if reply == nil {
		return
	}
	e.rx.mu.Lock()
	defer e.rx.mu.Unlock()
	if err := e.cfg.Device.Write([][]byte{make([]byte, offload.VnetLen), reply}); err != nil {
		e.drops.add(WriteFailed, 1)
	}
}
