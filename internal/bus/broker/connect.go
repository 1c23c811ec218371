package broker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxConnect bounds a CONNECT packet: a client id, a will topic and a small will.
const maxConnect = 4 << 10

var (
	errNotConnect = errors.New("the first packet is not CONNECT")
	errConnectBig = errors.New("the CONNECT packet is too long")
	errProtocol   = errors.New("the protocol is not MQTT 3.1.1")
)

// connackProtocol is CONNACK with "unacceptable protocol version".
var connackProtocol = []byte{0x20, 0x02, 0x00, 0x01}

var mqtt311 = []byte{0, 4, 'M', 'Q', 'T', 'T', 4}

// readConnect reads a whole CONNECT packet and accepts MQTT 3.1.1 only. mochi-mqtt would allocate
// the declared size, up to 256 MiB, before it checks the packet, and panics on some MQTT 5 packets.
func readConnect(r io.Reader) ([]byte, error) {
	packet := make([]byte, 1, 64)
	if _, err := io.ReadFull(r, packet); err != nil {
		return nil, fmt.Errorf("read CONNECT: %w", err)
	}
	if packet[0] != 0x10 {
		return nil, errNotConnect
	}
	remaining := 0
	for shift := 0; ; shift += 7 {
		if shift > 21 {
			return nil, errConnectBig
		}
		var b [1]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return nil, fmt.Errorf("read CONNECT: %w", err)
		}
		packet = append(packet, b[0])
		remaining |= int(b[0]&0x7f) << shift
		if b[0]&0x80 == 0 {
			break
		}
	}
	if remaining > maxConnect {
		return nil, fmt.Errorf("%w: %d bytes", errConnectBig, remaining)
	}
	header := len(packet)
	packet = append(packet, make([]byte, remaining)...)
	if _, err := io.ReadFull(r, packet[header:]); err != nil {
		return nil, fmt.Errorf("read CONNECT: %w", err)
	}
	if !bytes.HasPrefix(packet[header:], mqtt311) {
		return nil, errProtocol
	}
	return packet, nil
}
