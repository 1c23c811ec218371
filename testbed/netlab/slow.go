package netlab

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Slow is a link with delay and loss: a process copies its frames. It carries some 1 Gbit/s, and
// packets of at most 1500 bytes.
type Slow struct {
	mu    sync.Mutex // guards the fields below
	delay time.Duration
	loss  float64
	rng   *rand.Rand
}

// maxQueued bounds the frames in a slow link in each direction: 100 Mbit/s for a second.
const maxQueued = 8192

// Slow connects two hosts by a slow link. delay is for each direction; loss is the share of lost
// frames, chosen with the seed.
func (l *Lab) Slow(a *Host, devA, addrA string, b *Host, devB, addrB string, delay time.Duration, loss float64, seed uint64) *Slow {
	l.t.Helper()
	s := &Slow{delay: delay, loss: loss, rng: rand.New(rand.NewPCG(seed, 0))}
	box := l.Host(a.Name + "-" + b.Name)
	portA, portB := l.veth(a, devA, box), l.veth(b, devB, box)
	var ends [2]*os.File
	for i, e := range []struct {
		h         *Host
		dev, port string
	}{{a, devA, portA}, {b, devB, portB}} {
		// Frames must have MTU size and checksums, as on a wire.
		for _, x := range []struct {
			h   *Host
			dev string
		}{{e.h, e.dev}, {box, e.port}} {
			x.h.Run("ethtool", "-K", x.dev, "tx", "off", "tso", "off", "gso", "off", "gro", "off")
		}
		box.ip("link", "set", e.port, "up", "promisc", "on")
		ends[i] = box.packets(e.port)
	}
	a.up(devA, addrA)
	b.up(devB, addrB)
	go s.carry(ends[0], ends[1])
	go s.carry(ends[1], ends[0])
	return s
}

// Set changes delay and loss.
func (s *Slow) Set(delay time.Duration, loss float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay, s.loss = delay, loss
}

func (s *Slow) draw() (delay time.Duration, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.delay, s.rng.Float64() < s.loss
}

type frame struct {
	due  time.Time
	data []byte
}

// carry copies frames in one direction until the sockets are closed.
func (s *Slow) carry(from, to *os.File) {
	queue := make(chan frame, maxQueued)
	go func() {
		for f := range queue {
			time.Sleep(time.Until(f.due))
			_, _ = to.Write(f.data)
		}
	}()
	defer close(queue)
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		} else if err != nil {
			continue
		}
		delay, lost := s.draw()
		if lost {
			continue
		}
		select {
		case queue <- frame{time.Now().Add(delay), append([]byte(nil), buf[:n]...)}:
		default: // a full queue drops
		}
	}
}

// packets opens a socket that receives and sends the frames of a device.
func (h *Host) packets(dev string) *os.File {
	h.lab.t.Helper()
	var file *os.File
	var err error
	h.Do(func() {
		var i *net.Interface
		if i, err = net.InterfaceByName(dev); err != nil {
			return
		}
		var fd int
		all := htons(unix.ETH_P_ALL)
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return
		}
		file = os.NewFile(uintptr(fd), dev)
		_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index})
	})
	if err != nil {
		h.lab.t.Fatalf("%s: packets of %s: %v", h.Name, dev, err)
	}
	h.lab.t.Cleanup(func() { _ = file.Close() })
	return file
}

func htons(n uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], n)
	return binary.NativeEndian.Uint16(b[:])
}
