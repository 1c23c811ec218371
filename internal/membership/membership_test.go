package membership_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/membership"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var ours = bytes.Repeat([]byte{7}, membership.KeySize)

func open(t *testing.T, name string, key []byte) *membership.Gossip {
	t.Helper()
	g, err := membership.Open(membership.Options{
		Name: name, URL: "https://" + name, Version: "v1", Listen: "127.0.0.1:0", Key: key, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func shut(t *testing.T, g *membership.Gossip) {
	t.Helper()
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// sees waits until g has exactly these members: name, state.
func sees(t *testing.T, g *membership.Gossip, want ...string) {
	t.Helper()
	var got []string
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		got = nil
		for _, m := range g.Members() {
			got = append(got, fmt.Sprintf("%s %s", m.Name, m.State))
		}
		if slices.Equal(got, want) {
			return
		}
	}
	t.Fatalf("the members are %q, want %q", got, want)
}

// A replica needs the address of one other one only, and a replica that stops has left, not failed.
func TestReplicasLearnOfOneAnother(t *testing.T) {
	a, b, c := open(t, "a:1", ours), open(t, "b:1", ours), open(t, "c:1", ours)
	defer shut(t, a)
	defer shut(t, b)
	a.Contact(a.Address()) // the active one has itself
	b.Contact(a.Address())
	c.Contact(a.Address())
	all := []string{"a:1 alive", "b:1 alive", "c:1 alive"}
	for _, g := range []*membership.Gossip{a, b, c} {
		sees(t, g, all...)
	}
	m := b.Members()[2]
	if m.URL != "https://c:1" || m.Version != "v1" || time.Since(m.Since) > time.Minute {
		t.Errorf("b has %+v, want the URL and the version of c, and since when it is alive", m)
	}
	began := time.Now()
	shut(t, c)
	t.Logf("left in %v", time.Since(began))
	sees(t, a, "a:1 alive", "b:1 alive", "c:1 left")
	sees(t, b, "a:1 alive", "b:1 alive", "c:1 left")
	select {
	case <-b.Changed():
	case <-time.After(30 * time.Second):
		t.Error("b is not told that a replica left")
	}
}

// A replica that crashed has failed. Its next process has another port here, and takes its place.
func TestACrashedReplicaFailsAndComesBack(t *testing.T) {
	a, b := open(t, "a:1", ours), open(t, "b:1", ours)
	defer shut(t, a)
	b.Contact(a.Address())
	sees(t, a, "a:1 alive", "b:1 alive")
	began := time.Now()
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	sees(t, a, "a:1 alive", "b:1 failed")
	t.Logf("failed after %v", time.Since(began))
	again := open(t, "b:1", ours)
	defer shut(t, again)
	again.Contact(a.Address())
	sees(t, a, "a:1 alive", "b:1 alive")
	sees(t, again, "a:1 alive", "b:1 alive")
}

// A stranger reaches the port and has everything but the key.
func TestStrangersNeitherReadNorJoin(t *testing.T) {
	a, b := open(t, "a:1", ours), open(t, "b:1", ours)
	defer shut(t, a)
	defer shut(t, b)
	b.Contact(a.Address())
	sees(t, a, "a:1 alive", "b:1 alive")

	// With another key, and the name of a replica.
	other := open(t, "b:1", bytes.Repeat([]byte{8}, membership.KeySize))
	defer shut(t, other)
	other.Contact(a.Address())

	// Without a key, by the library itself.
	conf := memberlist.DefaultLocalConfig()
	conf.Name, conf.BindAddr, conf.BindPort, conf.AdvertiseAddr, conf.LogOutput = "plain", "127.0.0.1", 0, "127.0.0.1", io.Discard
	plain, err := memberlist.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Shutdown() }()
	if _, err := plain.Join([]string{a.Address()}); err == nil {
		t.Error("a stranger without a key joined")
	}
	for _, text := range []string{"", "\x00", "\x0a\x00\xff\xff\xff\xff", "\x0c\x01", string(make([]byte, 65000))} {
		if err := plain.SendBestEffort(&memberlist.Node{Addr: net.IPv4(127, 0, 0, 1), Port: port(t, a)}, []byte(text)); err != nil {
			t.Log(err) // too long
		}
		c, err := net.Dial("udp", a.Address())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte(text))
		_ = c.Close()
	}

	// Silent connections, and one that sends without end.
	var silent []net.Conn
	defer func() {
		for _, c := range silent {
			_ = c.Close()
		}
	}()
	for range 200 {
		c, err := net.Dial("tcp", a.Address())
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	c, err := net.Dial("tcp", a.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const most = 16 << 20 // what the sockets buffer is less
	_, _ = c.Write([]byte{10, 1, 0, 0, 0})
	sent := 0
	for chunk := make([]byte, 64<<10); sent < most; {
		n, err := c.Write(chunk)
		if sent += n; err != nil {
			break
		}
	}
	if sent >= most {
		t.Errorf("a stranger sent %d bytes, which the replica buffers", sent)
	}

	// The replicas still reach one another, also over new connections.
	late := open(t, "c:1", ours)
	late.Contact(a.Address())
	sees(t, late, "a:1 alive", "b:1 alive", "c:1 alive")
	shut(t, late)
	sees(t, a, "a:1 alive", "b:1 alive", "c:1 left")
	if got := other.Members(); len(got) != 1 {
		t.Errorf("a stranger with another key has the members %+v, want itself only", got)
	}
	if got := a.Members()[1]; got.URL != "https://b:1" || got.State != api.ReplicaAlive {
		t.Errorf("a stranger took the name of a replica: %+v", got)
	}
}

func port(t *testing.T, g *membership.Gossip) uint16 {
	t.Helper()
	at, err := net.ResolveTCPAddr("tcp", g.Address())
	if err != nil {
		t.Fatal(err)
	}
	return uint16(at.Port)
}
