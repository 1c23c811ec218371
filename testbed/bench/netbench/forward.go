package netbench

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	wgtun "golang.zx2c4.com/wireguard/tun"

	"github.com/treeline-edge/treeline/internal/udp"
	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

func init() { roles["forward"] = as(forward) }

// Forwarder returns a tunnel without encryption, which compares TUN devices and sockets: wgTUN
// selects wireguard-go's TUN device instead of netmanager/tunnel/tun with offload, and wgConn its
// sockets instead of internal/udp. Both ends are the same.
func Forwarder(wgTUN, wgConn bool) Path { return &forwarder{wgTUN: wgTUN, wgConn: wgConn} }

type forwarder struct {
	plain
	wgTUN, wgConn bool
}

type forwardOrder struct {
	WGTUN, WGConn bool
	Remote        netip.AddrPort
}

const (
	forwardDevice = "fwd0"
	forwardMTU    = 1420
	forwardPort   = 50104
)

// Up implements Path.
func (p *forwarder) Up(ctx context.Context, b *Bed) error {
	if err := p.containers(ctx, b, forwardMTU); err != nil {
		return err
	}
	for i, n := range b.Node {
		c, err := b.start(n, "forward", forwardOrder{p.wgTUN, p.wgConn, netip.AddrPortFrom(WireAddr[1-i], forwardPort)})
		if err != nil {
			return err
		}
		p.procs = append(p.procs, c)
		if err := n.IP(ctx, fmt.Sprintf("link set %s mtu %d up", forwardDevice, forwardMTU), fmt.Sprintf("route add %s dev %s", behind(1-i), forwardDevice)); err != nil {
			return err
		}
	}
	return nil
}

// A datagram is a byte, which says whether the packet's checksum is partial, and a packet.
const (
	complete = 0
	partial  = 1
)

// forwardHeadroom is the free space before a packet in a buffer: for wireguard-go's vnet header
// and for the byte of a datagram.
const forwardHeadroom = 16

// packets are buffers as wireguard-go uses them: sizes[i] bytes after the headroom.
type packets struct {
	bufs  [][]byte
	sizes []int
}

func newPackets() *packets {
	p := &packets{bufs: make([][]byte, conn.IdealBatchSize), sizes: make([]int, conn.IdealBatchSize)}
	for i := range p.bufs {
		p.bufs[i] = make([]byte, 1<<16)
	}
	return p
}

// forward moves packets until ctx ends.
func forward(ctx context.Context, o forwardOrder, ready func()) (any, error) {
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2) // like the netmanager, because threads that wait in the kernel occupy two
	errs := make(chan error, 4)
	var read func(out func(packet []byte, kind byte) error, flush func() error) error
	var newWriter func() (add func(packet []byte, kind byte) error, flush func() error)
	if o.WGTUN {
		dev, err := wgtun.CreateTUN(forwardDevice, forwardMTU)
		if err != nil {
			return nil, err
		}
		defer dev.Close()
		read = func(out func([]byte, byte) error, flush func() error) error { return readWG(dev, out, flush) }
		newWriter = func() (func([]byte, byte) error, func() error) { return writerWG(dev) }
	} else {
		dev, err := tun.Open(forwardDevice, forwardMTU)
		if err != nil {
			return nil, err
		}
		defer dev.Close()
		read = func(out func([]byte, byte) error, flush func() error) error { return readTreeline(dev, out, flush) }
		newWriter = func() (func([]byte, byte) error, func() error) { return writerTreeline(dev) }
	}
	if o.WGConn {
		bind := conn.NewStdNetBind()
		receive, _, err := bind.Open(forwardPort)
		if err != nil {
			return nil, err
		}
		defer bind.Close()
		to, err := bind.ParseEndpoint(o.Remote.String())
		if err != nil {
			return nil, err
		}
		out, flush := senderWG(bind, to)
		go func() { errs <- read(out, flush) }()
		for _, fn := range receive {
			add, flush := newWriter()
			go func() { errs <- receiveWG(fn, add, flush) }()
		}
	} else {
		c, err := udp.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), forwardPort))
		if err != nil {
			return nil, err
		}
		defer c.Close()
		out, flush := senderTreeline(c, o.Remote)
		go func() { errs <- read(out, flush) }()
		add, written := newWriter()
		go func() { errs <- receiveTreeline(c, add, written) }()
	}
	ready()
	select {
	case <-ctx.Done():
		return nil, nil
	case err := <-errs:
		return nil, err
	}
}

func readTreeline(dev tun.Device, out func([]byte, byte) error, flush func() error) error {
	frame := make([]byte, tun.FrameLen)
	var split offload.Splitter
	var seg offload.Segment
	idle := func() { _ = flush() }
	for {
		n, err := dev.Read(frame, idle)
		if err != nil {
			return err
		}
		if split.Start(frame[:n]) != nil {
			continue
		}
		for split.Next(&seg) {
			kind := byte(complete)
			if seg.Partial {
				kind = partial
			}
			if err := out(seg.Packet, kind); err != nil {
				return err
			}
		}
	}
}

func readWG(dev wgtun.Device, out func([]byte, byte) error, flush func() error) error {
	p := newPackets()
	for {
		n, err := dev.Read(p.bufs, p.sizes, forwardHeadroom)
		if err != nil {
			return err
		}
		for i := range n {
			if err := out(p.bufs[i][forwardHeadroom:forwardHeadroom+p.sizes[i]], complete); err != nil {
				return err
			}
		}
		if err := flush(); err != nil {
			return err
		}
	}
}

// senderTreeline joins datagrams of one length into runs, as the tunnel does.
func senderTreeline(c *udp.Conn, to netip.AddrPort) (add func([]byte, byte) error, flush func() error) {
	s := c.NewSender()
	run, each, count, ended := make([]byte, 0, udp.MaxRun), 0, 0, false
	flush = func() error {
		if count == 0 {
			return nil
		}
		_ = s.Send(to, run, each) // an error concerns this run
		run, count, ended = run[:0], 0, false
		return nil
	}
	return func(packet []byte, kind byte) error {
		n := len(packet) + 1
		if count > 0 && (ended || n > each || count == udp.MaxDatagrams || len(run)+n > cap(run)) {
			if err := flush(); err != nil {
				return err
			}
		}
		run = append(append(run, kind), packet...)
		if count == 0 {
			each = n
		}
		ended = n < each
		count++
		return nil
	}, flush
}

func senderWG(bind conn.Bind, to conn.Endpoint) (add func([]byte, byte) error, flush func() error) {
	p := newPackets()
	send := make([][]byte, 0, len(p.bufs))
	flush = func() error {
		if len(send) > 0 {
			_ = bind.Send(send, to) // an error concerns these datagrams
			send = send[:0]
		}
		return nil
	}
	return func(packet []byte, kind byte) error {
		b := append(append(p.bufs[len(send)][:0], kind), packet...)
		if send = append(send, b); len(send) == bind.BatchSize() {
			return flush()
		}
		return nil
	}, flush
}

func receiveTreeline(c *udp.Conn, add func([]byte, byte) error, flush func() error) error {
	r := c.NewReceiver()
	for {
		n, err := r.Receive()
		if err != nil {
			return err
		}
		for i := range n {
			m := r.Message(i)
			for b := m.Data; len(b) > 1; {
				d := b[:min(m.Each, len(b))]
				b = b[len(d):]
				if err := add(d[1:], d[0]); err != nil {
					return err
				}
			}
		}
		if err := flush(); err != nil {
			return err
		}
	}
}

func receiveWG(receive conn.ReceiveFunc, add func([]byte, byte) error, flush func() error) error {
	p := newPackets()
	eps := make([]conn.Endpoint, len(p.bufs))
	for {
		n, err := receive(p.bufs, p.sizes, eps)
		if err != nil {
			return err
		}
		for i := range n {
			if p.sizes[i] > 1 {
				if err := add(p.bufs[i][1:p.sizes[i]], p.bufs[i][0]); err != nil {
					return err
				}
			}
		}
		if err := flush(); err != nil {
			return err
		}
	}
}

func writerTreeline(dev tun.Device) (add func([]byte, byte) error, flush func() error) {
	const most = 60 << 10
	var j offload.Joiner
	j.TCP, j.UDP = dev.Joins()
	bytes := 0
	flush = func() error {
		bytes = 0
		_ = j.Flush(dev.Write)
		return nil
	}
	return func(packet []byte, kind byte) error {
		j.Add(packet, kind == partial)
		if bytes += len(packet); bytes >= most {
			return flush()
		}
		return nil
	}, flush
}

// writerWG copies packets, because wireguard-go's device needs free space before each, and
// datagrams that were received as a run have none.
func writerWG(dev wgtun.Device) (add func([]byte, byte) error, flush func() error) {
	p := newPackets()
	write := make([][]byte, 0, len(p.bufs))
	flush = func() error {
		if len(write) > 0 {
			_, _ = dev.Write(write, forwardHeadroom)
			write = write[:0]
		}
		return nil
	}
	return func(packet []byte, _ byte) error {
		b := append(p.bufs[len(write)][:forwardHeadroom], packet...)
		if write = append(write, b); len(write) == cap(write) {
			return flush()
		}
		return nil
	}, flush
}

// CPUTime returns the processor time of processes.
func CPUTime(pids []int) (time.Duration, error) {
	var ticks int
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, i := range []int{11, 12} { // utime, stime
			n, err := strconv.Atoi(f[i])
			if err != nil {
				return 0, err
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
