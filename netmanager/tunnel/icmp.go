package tunnel

import "github.com/treeline-edge/treeline/netmanager/tunnel/offload"

// tooLong answers a packet that exceeds mtu with an ICMP error, so that its sender sends
// shorter ones.
func (e *Engine) tooLong(packet []byte, mtu int) {
	frame := offload.TooBig(packet, mtu)
	if frame == nil {
		return
	}
	e.rx.mu.Lock()
	defer e.rx.mu.Unlock()
	if err := e.cfg.Device.Write([][]byte{frame[:offload.VnetLen], frame[offload.VnetLen:]}); err != nil {
		e.drops.add(WriteFailed, 1)
	}
}
