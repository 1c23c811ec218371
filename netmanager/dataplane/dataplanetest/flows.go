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
)

// patience is how long the suite waits for what must come; quiet is how long it
// listens for what must not.
const (
	patience = 20 * time.Second
	quiet    = 300 * time.Millisecond
)

// Serve answers on TCP and UDP at port of the space, for both families: whoever
// connects or sends is told label, and TCP then echoes.
func (s *Space) Serve(label string, port uint16) {
	s.t.Helper()
	var l net.Listener
	var p net.PacketConn
	var err error
	s.Do(func() {
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			p, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		}
	})
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
		b := make([]byte, 65536)
		for {
			n, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			// What was sent comes back behind the label, so that sizes are tested both ways.
			_, _ = p.WriteTo(append([]byte(label+"\n"), b[:n]...), from)
		}
	}()
}

// Dial opens a flow from the space; port 0 of local lets the kernel choose.
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

// Ask opens a new flow and says who answered.
func (s *Space) Ask(network string, to netip.AddrPort) (string, error) {
	return s.AskFrom(network, to, 0, "?")
}

// AskFrom is Ask from a port of its own; UDP sends body.
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

// Silent says that nothing answers: neither an answer nor a refusal comes while
// the suite listens.
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
