package dataplanetest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long the suite waits for an expected event; quiet is how long it waits for an
// event that must not come.
const (
	patience = time.Minute
	quiet    = 300 * time.Millisecond
)

// Serve answers on TCP and UDP at port of the space, for both families: it sends label to each
// client, and then echoes TCP.
func (s *Space) Serve(label string, port uint16) {
	s.t.Helper()
	var l net.Listener
	var p *net.UDPConn
	var err error
	s.Do(func() {
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			p, err = net.ListenUDP("udp", &net.UDPAddr{Port: int(port)})
		}
	})
	if err == nil {
		err = answerAsAsked(p)
	}
	if err != nil {
		s.t.Fatalf("serve in %s: %v", s.Name, err)
	}
	s.t.Cleanup(func() { l.Close(); p.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, label)
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	go func() {
		b, oob := make([]byte, 65536), make([]byte, 128)
		for {
			n, m, _, from, err := p.ReadMsgUDPAddrPort(b, oob)
			if err != nil {
				return
			}
			// The answer comes from the address that was asked, by any device.
			clear(oob[unix.CmsgSpace(0)+net.IPv6len : unix.CmsgSpace(0)+net.IPv6len+4])
			// The echo follows the label, so that sizes are tested in both directions.
			_, _, _ = p.WriteMsgUDPAddrPort(append([]byte(label+"\n"), b[:n]...), oob[:m], from)
		}
	}()
}

// answerAsAsked makes the socket report the destination address of a datagram.
func answerAsAsked(p *net.UDPConn) error {
	raw, err := p.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	return errors.Join(err, set)
}

// Dial opens a flow from the space; local port 0 lets the kernel choose.
func (s *Space) Dial(network string, to netip.AddrPort, local uint16) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	switch {
	case local != 0 && network == "tcp":
		d.LocalAddr = &net.TCPAddr{Port: int(local)}
	case local != 0:
		d.LocalAddr = &net.UDPAddr{Port: int(local)}
	}
	var c net.Conn
	var err error
	s.Do(func() { c, err = d.Dial(network, to.String()) })
	return c, err
}

// Ask opens a flow and returns the label of the server.
func (s *Space) Ask(network string, to netip.AddrPort) (string, error) {
	return s.AskFrom(network, to, 0, "?")
}

// AskFrom is Ask from a given port; UDP sends body.
func (s *Space) AskFrom(network string, to netip.AddrPort, local uint16, body string) (string, error) {
	c, err := s.Dial(network, to, local)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return askOn(c, body)
}

func askOn(c net.Conn, body string) (string, error) {
	_ = c.SetDeadline(time.Now().Add(patience))
	if c.RemoteAddr().Network() == "tcp" {
		line, err := bufio.NewReader(c).ReadString('\n')
		return strings.TrimSpace(line), err
	}
	return askUDP(c, body)
}

// askUDP sends one datagram and reads the answer.
func askUDP(c net.Conn, body string) (string, error) {
	if _, err := io.WriteString(c, body); err != nil {
		return "", err
	}
	b := make([]byte, 65536)
	n, err := c.Read(b)
	if err != nil {
		return "", err
	}
	label, rest, _ := strings.Cut(string(b[:n]), "\n")
	if rest != body {
		return "", fmt.Errorf("%s sent back %d bytes of %d", label, len(rest), len(body))
	}
	return label, nil
}

// Silent checks that neither an answer nor an error comes within quiet.
func (s *Space) Silent(network string, to netip.AddrPort) error {
	d := net.Dialer{Timeout: quiet}
	var c net.Conn
	var err error
	s.Do(func() { c, err = d.Dial(network, to.String()) })
	if network == "udp" && err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(quiet))
		_, err = askUDP(c, "?")
	} else if err == nil {
		c.Close()
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return nil
	}
	return fmt.Errorf("%s to %s: want silence, got %v", network, to, err)
}

// Flow is an open flow to a server of Serve.
type Flow struct {
	net.Conn
	Label string // the server's
	from  string
	r     *bufio.Reader
	n     int
}

// Open opens a flow that ends with the test.
func (c *Container) Open(network string, to netip.AddrPort) *Flow {
	c.t.Helper()
	return c.OpenFrom(network, to, 0)
}

// OpenFrom is Open from a given port.
func (c *Container) OpenFrom(network string, to netip.AddrPort, local uint16) *Flow {
	c.t.Helper()
	conn, err := c.Dial(network, to, local)
	if err != nil {
		c.t.Fatalf("%s opens %s to %s: %v", c.Label, network, to, err)
	}
	c.t.Cleanup(func() { conn.Close() })
	f := &Flow{Conn: conn, from: c.Label, r: bufio.NewReader(conn)}
	if f.Label, err = f.Ask(); err != nil {
		c.t.Fatalf("%s asks %s to %s: %v", c.Label, network, to, err)
	}
	return f
}

func (f *Flow) String() string {
	return fmt.Sprintf("%s from %s to %s at %s", f.RemoteAddr().Network(), f.from, f.RemoteAddr(), f.Label)
}

// Ask returns the label of the flow's server now. TCP's answer is the first line.
func (f *Flow) Ask() (string, error) {
	_ = f.SetDeadline(time.Now().Add(patience))
	if f.RemoteAddr().Network() == "udp" {
		return askUDP(f, "?")
	}
	line, err := f.r.ReadString('\n')
	return strings.TrimSpace(line), err
}

// Echo sends data and checks that it returns from the same backend.
func (f *Flow) Echo() error { return f.echo(patience) }

// Stopped checks that data does not return; a reset may come.
func (f *Flow) Stopped() error {
	if err := f.echo(quiet); err != nil {
		return nil
	}
	return fmt.Errorf("%s goes on", f)
}

func (f *Flow) echo(patience time.Duration) error {
	f.n++
	body := fmt.Sprintf("%s %d", f.from, f.n)
	_ = f.SetDeadline(time.Now().Add(patience))
	if f.RemoteAddr().Network() == "udp" {
		label, err := askUDP(f, body)
		if err == nil && label != f.Label {
			err = fmt.Errorf("%s answers instead of %s", label, f.Label)
		}
		return err
	}
	if _, err := io.WriteString(f, body+"\n"); err != nil {
		return err
	}
	line, err := f.r.ReadString('\n')
	if err == nil && strings.TrimSpace(line) != body {
		err = fmt.Errorf("sent %q, got back %q", body, line)
	}
	return err
}

// End waits for the end of the flow.
func (f *Flow) End() error {
	_ = f.SetDeadline(time.Now().Add(patience))
	_, err := f.Conn.Read(make([]byte, 1))
	return err
}

// Unreached checks that no answer comes; an error may come.
func (s *Space) Unreached(network string, to netip.AddrPort) error {
	d := net.Dialer{Timeout: quiet}
	var c net.Conn
	var err error
	s.Do(func() { c, err = d.Dial(network, to.String()) })
	if err != nil {
		return nil
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(quiet))
	if network == "udp" {
		var label string
		if label, err = askUDP(c, "?"); err != nil {
			return nil
		}
		return fmt.Errorf("%s answers %s to %s", label, network, to)
	}
	return fmt.Errorf("%s to %s is connected", network, to)
}
