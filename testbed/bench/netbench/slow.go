package netbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

func init() { roles["slow-wire"] = as(slowWire) }

// slowWireOrder has the delay and loss of frames in each direction.
type slowWireOrder struct {
	Delay time.Duration // one way
	Loss  float64       // 0 to 1
}

// slow inserts a namespace between the nodes, in which a process forwards frames, because not every
// kernel has netem. Frames contain one packet each with its checksum, as from a plain network card.
func (b *Bed) slow(ctx context.Context, name string) (err error) {
	b.slowly = true
	if b.wan, err = NewNamespace(ctx, name+"/wan"); err != nil {
		return err
	}
	if err := b.wan.Sysctl(ctx, "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"); err != nil {
		return err // no result
	}
	for i, n := range b.Node {
		if err := veth(ctx, n, WireDevice, b.wan, wanDevices[i], wireMTU); err != nil {
			return err
		}
	}
	return nil
}

// setSlow changes the properties of the slow link.
func (b *Bed) setSlow(ctx context.Context, o slowWireOrder) error {
	if b.wire != nil && b.slowAs == o {
		return nil
	}
	for _, n := range b.Node {
		if err := n.Run(ctx, "", "ethtool", "-K", WireDevice, "tx", "off", "tso", "off", "gso", "off", "tx-udp-segmentation", "off"); err != nil {
			return err
		}
	}
	if b.wire != nil {
		if err := b.wire.stop(); err != nil {
			return err
		}
	}
	c, err := b.wan.start("slow-wire", o)
	if err != nil {
		return err
	}
	b.wire, b.slowAs = c, o
	return c.ready()
}

func slowWire(ctx context.Context, o slowWireOrder, ready func()) (any, error) {
	var fds [2]int
	for i, name := range wanDevices {
		var err error
		if fds[i], err = openDevice(name); err != nil {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
	}
	errs := make(chan error, 4)
	for i := range fds {
		(&lane{order: o, from: fds[i], to: fds[1-i], chance: rand.New(rand.NewPCG(1, uint64(i)))}).run(errs)
	}
	ready()
	select {
	case <-ctx.Done():
		return nil, nil
	case err := <-errs:
		return nil, err
	}
}

// openDevice opens a socket for the frames of a device, without those that this socket sends.
func openDevice(name string) (int, error) {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // receives nothing before it is bound
	if err != nil {
		return 0, err
	}
	const all = uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8
	return fd, errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}))
}

// lane is one direction of the link. The frames in flight are bounded; others are dropped as in a
// full buffer.
type lane struct {
	order    slowWireOrder
	from, to int
	chance   *rand.Rand
}

type frame struct {
	due  time.Time
	size int
	data [wireMTU + 64]byte
}

// onTheWay bounds the frames in a lane: 60 MB, which is 2 Gbit/s for 250 ms.
const onTheWay = 40_000

func (l *lane) run(errs chan<- error) {
	flying, free := make(chan *frame, onTheWay), make(chan *frame, onTheWay)
	go func() { errs <- l.take(flying, free) }()
	go func() { errs <- l.give(flying, free) }()
}

func (l *lane) take(flying chan<- *frame, free <-chan *frame) error {
	runtime.LockOSThread()
	made, f := 0, (*frame)(nil)
	for {
		if f == nil {
			select {
			case f = <-free:
			default:
				if f = new(frame); made == onTheWay {
					f = <-free // none is free: new frames wait in the socket, or are lost
				} else {
					made++
				}
			}
		}
		n, err := unix.Read(l.from, f.data[:])
		switch {
		case err == unix.EINTR || err == unix.ENETDOWN:
			continue
		case err != nil:
			return fmt.Errorf("receive a frame: %w", err)
		}
		if l.order.Loss > 0 && l.chance.Float64() < l.order.Loss {
			continue
		}
		f.size, f.due = n, time.Now().Add(l.order.Delay)
		flying <- f
		f = nil
	}
}

func (l *lane) give(flying <-chan *frame, free chan<- *frame) error {
	runtime.LockOSThread()
	for f := range flying {
		// Sleep in the kernel, because Go's timers have a resolution of a millisecond.
		for d := time.Until(f.due); d > 0; d = time.Until(f.due) {
			ts := unix.NsecToTimespec(int64(d))
			_ = unix.Nanosleep(&ts, nil)
		}
		if _, err := unix.Write(l.to, f.data[:f.size]); err != nil && err != unix.ENOBUFS && err != unix.ENETDOWN {
			return fmt.Errorf("send a frame: %w", err)
		}
		free <- f
	}
	return nil
}
