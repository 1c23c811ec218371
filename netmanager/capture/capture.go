// Package capture writes what passes a network device as a pcap file (libpcap's
// classic format, draft-ietf-opsawg-pcap): for an operator who has to see an
// instance's packets. Whether somebody may is not decided here.
//
//	err := capture.Run(ctx, "tl0a100005", w, capture.Limits{Bytes: 16 << 20})
package capture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// Limits end a capture. ctx does too.
type Limits struct {
	For   time.Duration // 0: as long as ctx
	Bytes int64         // of the file; 0: any number
}

const (
	// snap is more than any packet: a segment before its offload is up to 64 KiB.
	snap = 64<<10 + 64
	// backlog is what the kernel keeps for us before it drops.
	backlog = 2 << 20

	magicNanoseconds = 0xa1b23c4d
	linkEthernet     = 1
	fileHeader       = 24
	packetHeader     = 16
)

// Run writes the packets of the device, both ways, from now on until a limit or
// ctx ends it, which is no error. A device that is not there is ErrNotFound; one
// that goes away ends the capture.
func Run(ctx context.Context, device string, w io.Writer, l Limits) error {
	ifc, err := net.InterfaceByName(device)
	if err != nil {
		return fmt.Errorf("capture on %s: %w: %w", device, api.ErrNotFound, err)
	}
	f, err := open(ifc.Index)
	if err != nil {
		return fmt.Errorf("capture on %s: %w", device, err)
	}
	defer f.Close()
	if l.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.For)
		defer cancel()
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	if _, err := w.Write(header()); err != nil {
		return err
	}
	left := l.Bytes - fileHeader
	buf := make([]byte, packetHeader+snap)
	for {
		n, err := f.Read(buf[packetHeader:])
		switch {
		case ctx.Err() != nil, errors.Is(err, unix.ENETDOWN):
			return nil
		case err != nil:
			return fmt.Errorf("capture on %s: %w", device, err)
		}
		if left -= int64(packetHeader + n); l.Bytes > 0 && left < 0 {
			return nil
		}
		frame(buf, n, time.Now())
		if _, err := w.Write(buf[:packetHeader+n]); err != nil {
			return err // who reads is gone
		}
	}
}

// open is a packet socket of the device. It is bound before it takes a packet, so
// that none of another device gets in.
func open(index int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, backlog) // else what it is
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "packets"), nil
}

func header() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, fileHeader), magicNanoseconds)
	b = binary.LittleEndian.AppendUint16(b, 2) // version 2.4
	b = binary.LittleEndian.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...) // UTC, no accuracy
	b = binary.LittleEndian.AppendUint32(b, snap)
	return binary.LittleEndian.AppendUint32(b, linkEthernet)
}

func frame(b []byte, n int, at time.Time) {
	binary.LittleEndian.PutUint32(b, uint32(at.Unix()))
	binary.LittleEndian.PutUint32(b[4:], uint32(at.Nanosecond()))
	binary.LittleEndian.PutUint32(b[8:], uint32(n))
	binary.LittleEndian.PutUint32(b[12:], uint32(n))
}
