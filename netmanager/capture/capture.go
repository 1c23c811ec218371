// Package capture writes the packets of an instance's network device as a pcap file (libpcap's
// classic format, draft-ietf-opsawg-pcap). It does not authorize callers.
//
//	err := capture.Run(ctx, "/proc/4711/ns/net", link.MAC(address), w, capture.Limits{Bytes: 16 << 20})
package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	_ "github.com/treeline-edge/treeline/internal/mainthread"
)

// Limits end a capture, as the end of its context does.
type Limits struct {
	For   time.Duration // 0: until ctx ends
	Bytes int64         // of the file; 0: any number
}

const (
	// snap is the longest captured packet: before segmentation up to 64 KiB.
	snap = 64<<10 + 64
	// backlog is the size of the kernel's buffer in bytes.
	backlog = 2 << 20

	magicNanoseconds = 0xa1b23c4d
	linkEthernet     = 1
	fileHeader       = 24
	packetHeader     = 16
)

// Run writes the packets of the device with that hardware address in the namespace, in both
// directions, until a limit is reached, ctx ends or the device is deleted; these are not errors. It
// captures within the namespace, because a data plane may bypass the device on the host. It fails with
// ErrNotFound if the namespace or the device is missing.
func Run(ctx context.Context, netns string, mac net.HardwareAddr, w io.Writer, l Limits) error {
	f, err := open(netns, mac)
	if err != nil {
		return fmt.Errorf("capture packets of %s in %s: %w", mac, netns, err)
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
			return fmt.Errorf("capture packets of %s in %s: %w", mac, netns, err)
		}
		if left -= int64(packetHeader + n); l.Bytes > 0 && left < 0 {
			return nil
		}
		frame(buf, n, time.Now())
		if _, err := w.Write(buf[:packetHeader+n]); err != nil {
			return err // the reader is gone
		}
	}
}

// open opens a packet socket of the device. The path may lead to another namespace by now, when a
// process number is reused; the hardware address identifies the device.
func open(netns string, mac net.HardwareAddr) (f *os.File, err error) {
	ns, err := os.Open(netns)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", api.ErrNotFound, err)
	}
	defer ns.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err == nil {
			f, err = listen(mac)
		}
	}()
	<-done
	return f, err
}

// listen opens a packet socket in the thread's namespace. It receives only after it is bound, so
// that no packet of another device gets in.
func listen(mac net.HardwareAddr) (*os.File, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	index := 0
	for _, d := range all {
		if bytes.Equal(d.HardwareAddr, mac) {
			index = d.Index
		}
	}
	if index == 0 {
		return nil, fmt.Errorf("no network device has the address of the instance: %w", api.ErrNotFound)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, backlog) // on failure the default stays
	every := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: every, Ifindex: index}); err != nil {
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
