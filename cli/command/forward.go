package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/cli/remote"
	"github.com/treeline-edge/treeline/internal/forward"
)

// The bounds of one port-forward on this machine; the node has its own.
const (
	maxSenders  = 64 // local addresses whose datagrams are forwarded at once
	datagramMax = 1<<16 - 1
	// senderWait is how long a datagram may wait for the stream before it is dropped.
	senderWait = time.Second
)

// portSpec is a port to listen on and the port of the instance that it leads to.
type portSpec struct {
	local uint16 // 0: any free port
	to    forward.Target
}

// parsePort parses [[LOCAL]:]REMOTE[/tcp|/udp].
func parsePort(arg string) (portSpec, error) {
	ports, protocol, ok := strings.Cut(arg, "/")
	if !ok {
		protocol = "tcp"
	}
	local, to, both := strings.Cut(ports, ":")
	if !both {
		to = local
	}
	p := portSpec{to: forward.Target{Protocol: protocol}}
	n, err := strconv.ParseUint(to, 10, 16)
	if err == nil && local != "" {
		var l uint64
		l, err = strconv.ParseUint(local, 10, 16)
		p.local = uint16(l)
	}
	if err != nil || n == 0 || protocol != "tcp" && protocol != "udp" {
		return p, usage("port %q: want PORT, LOCAL:PORT or :PORT, with /udp for UDP, such as 8080:80", arg)
	}
	p.to.Port = uint16(n)
	return p, nil
}

func (c *cli) portForwardCmd() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use: "port-forward INSTANCE|SERVICE [LOCAL:]PORT[/udp]...", Short: "Forward local ports to an instance", Args: cobra.MinimumNArgs(2),
		Long: `Listen on local ports and forward connections, and datagrams of UDP, to ports of an
instance, also of ports that the service does not publish. Of a service, the first
instance that runs is used. :PORT listens on any free port. The command ends when the
instance or the connection to it ends.`,
		Example: `  treeline port-forward shop/web#0 8080:80
  treeline port-forward shop/dns 5353:53/udp`,
		ValidArgsFunction: c.complete("instances", "services"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			var ports []portSpec
			for _, arg := range args[1:] {
				p, err := parsePort(arg)
				if err != nil {
					return err
				}
				ports = append(ports, p)
			}
			if _, err := netip.ParseAddr(address); err != nil {
				return usage("--address %q: want an IP address", address)
			}
			id, err := c.running(ctx, a, args[0])
			if err != nil {
				return err
			}
			return c.portForward(ctx, a, id, address, ports)
		}),
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "local address to listen on")
	return cmd
}

// portForward forwards until ctx or the stream ends.
func (c *cli) portForward(ctx context.Context, a *client.Client, id api.InstanceID, address string, ports []portSpec) error {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := remote.Dial(ctx, a, id, "portforward", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	session, err := forward.Client(conn)
	if err != nil {
		return err
	}
	defer session.Close()
	f := &forwarder{cli: c, session: session}
	var all sync.WaitGroup
	defer all.Wait()
	for _, p := range ports {
		at := net.JoinHostPort(address, strconv.Itoa(int(p.local)))
		var bound net.Addr
		var closer io.Closer
		if p.to.Protocol == "udp" {
			pc, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", at)
			if err != nil {
				return fmt.Errorf("listen on %s: %w", at, err)
			}
			bound, closer = pc.LocalAddr(), pc
			defer pc.Close()
			all.Go(func() { f.packets(pc, p.to) })
		} else {
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
			if err != nil {
				return fmt.Errorf("listen on %s: %w", at, err)
			}
			bound, closer = l.Addr(), l
			defer l.Close()
			all.Go(func() { f.connections(l, p.to) })
		}
		defer context.AfterFunc(ctx, func() { _ = closer.Close() })()
		c.say("%s/%s is forwarded to port %d of %s", bound, p.to.Protocol, p.to.Port, c.progress().Short(string(id)))
	}
	select {
	case <-outer.Done():
		return nil // ended by Ctrl-C
	case <-session.Done():
	}
	err = conn.Err()
	if err == nil || errors.Is(err, io.EOF) {
		err = fmt.Errorf("stream interrupted: its node or cluster ended it; run the command again: %w", api.ErrUnavailable)
	}
	return fmt.Errorf("port-forward to %s: %w", id, err)
}

// forwarder forwards connections over one session.
type forwarder struct {
	cli     *cli
	session *forward.Session
	mu      sync.Mutex // held while printing
}

func (f *forwarder) complain(to forward.Target, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cli.say("%s: %v", to, err)
}

func (f *forwarder) connections(l net.Listener, to forward.Target) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		local, err := l.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			defer local.Close()
			c, err := f.session.Open(to)
			if err != nil {
				f.complain(to, err)
				return
			}
			c.Copy(local)
		})
	}
}

// packets forwards the datagrams of each local address over a connection of its own.
func (f *forwarder) packets(pc net.PacketConn, to forward.Target) {
	var all sync.WaitGroup
	defer all.Wait()
	var mu sync.Mutex // guards senders
	senders := map[string]net.Conn{}
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range senders {
			_ = s.Close()
		}
	}()
	buf := make([]byte, datagramMax)
	for {
		n, from, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an answer to an earlier datagram
		}
		mu.Lock()
		to1, known := senders[from.String()]
		if !known && len(senders) < maxSenders {
			// A pipe keeps the borders of datagrams.
			near, far := net.Pipe()
			to1, senders[from.String()] = near, near
			all.Go(func() {
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					delete(senders, from.String())
					_ = near.Close()
				}()
				f.sender(near, far, to, func(p []byte) { _, _ = pc.WriteTo(p, from) })
			})
		}
		mu.Unlock()
		if to1 != nil {
			_ = to1.SetWriteDeadline(time.Now().Add(senderWait))
			_, _ = to1.Write(buf[:n]) // a datagram that waits too long is dropped
		}
	}
}

// sender forwards the datagrams of one local address until they cease.
func (f *forwarder) sender(near, far net.Conn, to forward.Target, answer func([]byte)) {
	defer far.Close()
	c, err := f.session.Open(to)
	if err != nil {
		f.complain(to, err)
		return
	}
	go func() {
		buf := make([]byte, datagramMax)
		for {
			n, err := near.Read(buf)
			if err != nil {
				return
			}
			answer(buf[:n])
		}
	}()
	c.Copy(far)
}
