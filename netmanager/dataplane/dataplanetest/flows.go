package dataplanetest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long the suite waits for an expected event; quiet is how long it waits for an
// event that must not come.
const (
	patience = time.Minute
	quiet    = 300 * time.Millisecond
)

// Serve starts servers for TCP and UDP on a port of the space, for both families. TCP sends label
// and then echoes; UDP answers with label and the datagram.
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
		err = answerFromCalledAddress(p)
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
			// The answer has the source address that the client asked, on any device.
			clear(oob[unix.CmsgSpace(0)+net.IPv6len : unix.CmsgSpace(0)+net.IPv6len+4])
			// The echo follows the label, so that sizes are tested in both directions.
			_, _, _ = p.WriteMsgUDPAddrPort(append([]byte(label+"\n"), b[:n]...), oob[:m], from)
		}
	}()
}

// answerFromCalledAddress makes the socket report the destination address of a datagram.
func answerFromCalledAddress(p *net.UDPConn) error {
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
	return s.Send(network, to, "?")
}

// Send is Ask with a body, which only UDP sends.
func (s *Space) Send(network string, to netip.AddrPort, body string) (string, error) {
	c, err := s.Dial(network, to, 0)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if network == "tcp" {
		line, err := bufio.NewReader(c).ReadString('\n')
		return strings.TrimSpace(line), err
	}
	return askUDP(c, body)
}

// MustAsk is Ask, and ends the test on an error.
func (s *Space) MustAsk(network string, to netip.AddrPort) string {
	s.t.Helper()
	label, err := s.Ask(network, to)
	if err != nil {
		s.t.Fatalf("ask %s %s from %s: %v", network, to, s.Name, err)
	}
	return label
}

type answer struct {
	label string
	err   error
}

func (s *Space) ask(answers chan<- answer, network string, to netip.AddrPort) {
	label, err := s.Ask(network, to)
	answers <- answer{label, err}
}

// Reaches checks that the server of a label answers.
func (s *Space) Reaches(label, network string, to netip.AddrPort) {
	s.t.Helper()
	if got, err := s.Ask(network, to); err != nil || got != label {
		s.t.Errorf("ask %s %s from %s: got answer %q and error %v, want answer %q", network, to, s.Name, got, err, label)
	}
}

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

func checkEcho(t *testing.T, which string, flows ...*Flow) {
	t.Helper()
	for _, f := range flows {
		if err := f.Echo(); err != nil {
			t.Errorf("%s, %s: %v", f, which, err)
		}
	}
}

// waitFor waits until ready, and ends the test if that takes too long.
func waitFor(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ready(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
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
func (s *Space) Unreached(network string, to netip.AddrPort) {
	s.t.Helper()
	d := net.Dialer{Timeout: quiet}
	var c net.Conn
	var err error
	s.Do(func() { c, err = d.Dial(network, to.String()) })
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(quiet))
	label := "its server"
	if network == "udp" {
		label, err = askUDP(c, "?")
	}
	if err == nil {
		s.t.Errorf("ask %s %s from %s: %s answered, want no answer", network, to, s.Name, label)
	}
}
