// Package tun opens TUN devices. With vnet headers a read or write carries up to 64 KB of one flow, so
// that the kernel traverses its stack once for about 45 packets on the wire.
//
// A device outlives its process. Its addresses and routes stay, and packets to it are dropped until it is
// opened again. The package sets no addresses or routes.
//
//	d, err := tun.Open("tl-tun", 1400)
//	n, err := d.Read(frame, nil)                   // a vnet header and a packet
//	err = d.Write([][]byte{vnet, header, payload}) // the same, in parts
package tun

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/rawio"
	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
)

// Device is an open TUN device. Read and Write are each for one goroutine at a time.
type Device interface {
	// Read reads a frame (a vnet header and a packet) into b of FrameLen bytes. Before it waits, it calls
	// idle once unless idle is nil. It returns net.ErrClosed if the device is closed.
	Read(b []byte, idle func()) (int, error)
	// Write writes a frame in parts; the first is the vnet header. An error concerns only this frame,
	// unless it is net.ErrClosed.
	Write(parts [][]byte) error
	// Joins reports for which protocols Write accepts frames of several packets.
	Joins() (tcp, udp bool)
	// Partial reports whether Write accepts packets with partial checksums.
	Partial() bool
	// Name returns the device's name.
	Name() string
	// Close closes the file. The device stays.
	Close() error
}

// FrameLen is the length of the longest frame in bytes.
const FrameLen = offload.VnetLen + offload.MaxPacket

// Offloads that x/sys does not define (linux/if_tun.h, since 6.2).
const (
	tunUSO4 = 0x20
	tunUSO6 = 0x40
)

// Open creates a device or opens the existing one, sets its MTU in bytes, and brings it up. If the kernel
// has no vnet headers, the device carries one packet at a time.
func Open(name string, mtu int) (Device, error) {
	d, err := open(name)
	if errors.Is(err, errNoVnet) {
		d, err = openPlain(name)
	}
	if err == nil {
		if err = up(name, mtu); err != nil {
			d.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open TUN device %s: %w", name, err)
	}
	return d, nil
}

// Remove removes the device if it exists. It fails while the device is open.
func Remove(name string) error {
	if _, err := net.InterfaceByName(name); err != nil {
		return nil
	}
	fd, err := attach(name, 0)
	if errors.Is(err, unix.EINVAL) { // it has vnet headers
		fd, err = attach(name, unix.IFF_VNET_HDR)
	}
	if err != nil {
		return fmt.Errorf("remove TUN device %s: %w", name, err)
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0); err != nil {
		return fmt.Errorf("remove TUN device %s: %w", name, err)
	}
	return nil
}

var errNoVnet = errors.New("no vnet headers")

func attach(name string, flags uint16) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("name: %w", err)
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("attach: %w", err)
	}
	return fd, nil
}

// device is a device with vnet headers.
type device struct {
	name string
	file *rawio.File
	uso  bool

	// The two system calls, bound once because a method value allocates, with their arguments and
	// results.
	in, out func(fd int) syscall.Errno
	b       []byte
	n       int
	idle    func()
	iovs    []unix.Iovec
}

func open(name string) (Device, error) {
	fd, err := attach(name, unix.IFF_VNET_HDR)
	if err != nil {
		if errors.Is(err, unix.EINVAL) {
			return nil, errNoVnet
		}
		return nil, err
	}
	d := &device{name: name, iovs: make([]unix.Iovec, 128)}
	if err := d.prepare(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	d.in, d.out = d.read, d.writev
	if d.file, err = rawio.New(fd); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *device) prepare(fd int) error {
	const tcp = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
	d.uso = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp|tunUSO4|tunUSO6) == nil
	if !d.uso {
		if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tcp); err != nil {
			return fmt.Errorf("set offloads: %w: %w", err, errNoVnet)
		}
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, offload.VnetLen); err != nil {
		return fmt.Errorf("set vnet header: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make the device persistent: %w", err)
	}
	return nil
}

func (d *device) Name() string           { return d.name }
func (d *device) Joins() (tcp, udp bool) { return true, d.uso }
func (d *device) Partial() bool          { return true }
func (d *device) Close() error           { return d.file.Close() }

func (d *device) Read(b []byte, idle func()) (int, error) {
	d.b, d.idle = b, idle
	err := d.file.Read(d.in)
	return d.n, err
}

func (d *device) read(fd int) syscall.Errno {
	n, _, errno := syscall.Syscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(d.b))), uintptr(len(d.b)))
	d.n = int(n)
	if errno == unix.EAGAIN && d.idle != nil {
		d.idle()
		d.idle = nil
		return unix.EINTR // a packet may have arrived during idle
	}
	return errno
}

func (d *device) Write(parts [][]byte) error {
	d.iovs = d.iovs[:0]
	for _, p := range parts {
		v := unix.Iovec{Base: unsafe.SliceData(p)}
		v.SetLen(len(p))
		d.iovs = append(d.iovs, v)
	}
	return d.file.Write(d.out)
}

func (d *device) writev(fd int) syscall.Errno {
	_, _, errno := syscall.Syscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&d.iovs[0])), uintptr(len(d.iovs)))
	runtime.KeepAlive(d.iovs)
	return errno
}

func up(name string, mtu int) error {
	dev, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(dev, mtu); err != nil {
		return fmt.Errorf("set MTU %d: %w", mtu, err)
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		return fmt.Errorf("bring up: %w", err)
	}
	return nil
}
