// Package membership shows which replicas of a daemon are alive, by the gossip of hashicorp/serf: they probe each
// other, and each of them learns of all others. All messages are encrypted with a key that only the replicas have.
//
// It is for people, metrics and lists of addresses. It decides nothing: which replica is active is decided by the
// lease in the store alone (package shared), because two sides of a partition each take the other one for failed.
//
//	g, err := membership.Open(membership.Options{Name: "10.0.0.5:7443", URL: url, Listen: ":7446", Key: key})
//	g.Contact("10.0.0.6:7446")
//	for _, m := range g.Members() { … }
package membership

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/reach"
)

// KeySize is the size of the key in bytes, for AES-256-GCM.
const KeySize = 32

// With these, a replica that does not answer is shown as failed after some 5 s, and one that was stopped as left within 1 s.
const (
	joinEvery  = 2 * time.Second // until the contact is a member
	syncEvery  = 5 * time.Second // exchange of the whole state with one other, and attempts to reach a failed one
	gossip     = 50 * time.Millisecond
	retransmit = 3
	suspicion  = 3
	leaveTime  = 3 * time.Second // at most: it ends when the message is sent, which a busy machine does late
	propagate  = 100 * time.Millisecond
	// forgetAfter is how long a failed replica, or one that has left, is shown.
	forgetAfter = 24 * time.Hour
)

// Tags of a member, which the library bounds to 512 bytes.
const (
	tagURL     = "url"
	tagVersion = "version"
)

// Options configure Open.
type Options struct {
	Name    string // unique among the replicas, and the same after a restart
	URL     string // of the replica's API
	Version string
	// Listen is host:port for UDP and TCP. Without a host, it is an address of this machine that others are told.
	Listen string
	Key    []byte // KeySize bytes that all replicas have, and nobody else
	Log    *slog.Logger
}

// Member is a replica as this process sees it.
type Member struct {
	Name, URL, Version string
	State              api.ReplicaState
	Since              time.Time // when this process saw that state first
}

// Gossip is this process as a member. Its methods are safe for concurrent use.
type Gossip struct {
	o       Options
	serf    *serf.Serf
	own     string // host:port, for others
	changed chan struct{}
	work    sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	contact string
	since   map[string]change
}

// change is a state, and when it was first seen.
type change struct {
	state api.ReplicaState
	at    time.Time
}

// Open listens and becomes a member without others.
func Open(o Options) (*Gossip, error) {
	o.Log = cmp.Or(o.Log, slog.Default())
	if len(o.Key) != KeySize {
		return nil, fmt.Errorf("gossip among replicas: the key has %d bytes, want %d: %w", len(o.Key), KeySize, api.ErrInvalid)
	}
	at, err := resolve(o.Listen)
	if err != nil {
		return nil, err
	}
	quiet := slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug) // strangers cause a line with each packet
	carrier, err := listen(at, quiet)
	if err != nil {
		return nil, err
	}
	port := carrier.GetAutoBindPort()
	external, _ := reach.Of(&net.TCPAddr{IP: at.IP, Port: port}, "", nil)
	u, err := url.Parse(external)
	if err != nil {
		_ = carrier.Shutdown()
		return nil, fmt.Errorf("gossip among replicas: address of this machine: %w", err)
	}

	list := memberlist.DefaultLANConfig()
	list.Transport, list.Logger = carrier, quiet
	list.AdvertiseAddr, list.AdvertisePort = u.Hostname(), port
	list.SecretKey, list.GossipVerifyIncoming, list.GossipVerifyOutgoing = o.Key, true, true
	list.EnableCompression = false
	list.GossipInterval, list.RetransmitMult, list.SuspicionMult, list.PushPullInterval = gossip, retransmit, suspicion, syncEvery
	list.DeadNodeReclaimTime = time.Millisecond // a replica that failed may come back with another address

	events := make(chan serf.Event, 64)
	conf := serf.DefaultConfig()
	conf.MemberlistConfig, conf.Logger, conf.EventCh = list, quiet, events
	conf.NodeName, conf.Tags = o.Name, map[string]string{tagURL: o.URL, tagVersion: o.Version}
	conf.BroadcastTimeout, conf.LeavePropagateDelay, conf.ReconnectInterval = leaveTime, propagate, syncEvery
	conf.ReconnectTimeout, conf.TombstoneTimeout = forgetAfter, forgetAfter
	conf.DisableCoordinates = true
	conf.EnableNameConflictResolution = false // it would end one of two replicas of the same name

	g := &Gossip{o: o, own: net.JoinHostPort(u.Hostname(), fmt.Sprint(port)), changed: make(chan struct{}, 1), since: map[string]change{}}
	if g.serf, err = serf.Create(conf); err != nil {
		_ = carrier.Shutdown()
		return nil, fmt.Errorf("gossip among replicas: %w", err)
	}
	g.work.Go(func() { g.follow(events) })
	g.work.Go(g.join)
	return g, nil
}

// resolve returns the address of host:port; its IP is nil without a host.
func resolve(text string) (*net.TCPAddr, error) {
	at, err := net.ResolveTCPAddr("tcp", text)
	if err != nil {
		return nil, fmt.Errorf("gossip among replicas: listen at %q: %w", text, err)
	}
	if at.IP.IsUnspecified() {
		at.IP = nil
	}
	if at.Port != 0 {
		return at, nil
	}
	ln, err := freeport.Listen(at.String())
	if err != nil {
		return nil, err
	}
	at.Port = ln.Addr().(*net.TCPAddr).Port
	return at, ln.Close()
}

// Address returns host:port at which others reach this process.
func (g *Gossip) Address() string {
	if g == nil {
		return ""
	}
	return g.own
}

// Contact sets the address of the replica by which this one learns of all others. It is asked again until it is
// a member. The empty address, or the own one, is none.
func (g *Gossip) Contact(address string) {
	if g == nil {
		return
	}
	if _, err := netip.ParseAddrPort(address); err != nil {
		address = ""
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.contact = address
}

// Changed returns a channel that has a value after a replica failed or left.
func (g *Gossip) Changed() <-chan struct{} {
	if g == nil {
		return nil
	}
	return g.changed
}

// join asks the contact until it is a member.
func (g *Gossip) join() {
	tick := time.NewTicker(joinEvery / 8)
	defer tick.Stop()
	var asked string
	var next time.Time
	for {
		select {
		case <-g.serf.ShutdownCh():
			return
		case <-tick.C:
		}
		g.mu.Lock()
		to := g.contact
		g.mu.Unlock()
		if to == asked && time.Now().Before(next) || to == "" || to == g.own || g.knows(to) {
			continue
		}
		_, err := g.serf.Join([]string{to}, true)
		switch {
		case err == nil:
		case to != asked:
			g.o.Log.Warn("replica does not reach another one by gossip, retrying: check that its gossip_listen is reachable over UDP and TCP, and that both have the same secrets.key", "address", to, "err", err)
		default:
			g.o.Log.Debug("replica does not reach another one by gossip", "address", to, "err", err)
		}
		asked, next = to, time.Now().Add(joinEvery)
	}
}

// knows reports whether a member at the address is alive.
func (g *Gossip) knows(address string) bool {
	return slices.ContainsFunc(g.serf.Members(), func(m serf.Member) bool {
		return m.Status == serf.StatusAlive && net.JoinHostPort(m.Addr.String(), fmt.Sprint(m.Port)) == address
	})
}

// follow records when the states of members change.
func (g *Gossip) follow(events <-chan serf.Event) {
	for {
		select {
		case <-g.serf.ShutdownCh():
			return
		case e := <-events:
			if m, ok := e.(serf.MemberEvent); ok {
				g.update(time.Now(), m)
			}
		}
	}
}

func (g *Gossip) update(now time.Time, e serf.MemberEvent) {
	for _, m := range e.Members {
		state := stateOf(m.Status)
		g.mu.Lock()
		before := g.since[m.Name].state
		switch {
		case e.Type == serf.EventMemberReap:
			delete(g.since, m.Name)
		case before != state:
			g.since[m.Name] = change{state, now}
		}
		g.mu.Unlock()
		if m.Name == g.o.Name || before == state {
			continue
		}
		g.o.Log.Info("state of a replica changed", "replica", m.Name, "state", state, "before", before)
		if state != api.ReplicaAlive {
			select {
			case g.changed <- struct{}{}:
			default:
			}
		}
	}
}

func stateOf(s serf.MemberStatus) api.ReplicaState {
	switch s {
	case serf.StatusAlive:
		return api.ReplicaAlive
	case serf.StatusLeaving, serf.StatusLeft:
		return api.ReplicaLeft
	default:
		return api.ReplicaFailed
	}
}

// Members returns all replicas, this one included, by name.
func (g *Gossip) Members() []Member {
	if g == nil {
		return nil
	}
	all := g.serf.Members()
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]Member, 0, len(all))
	for _, m := range all {
		state, since := stateOf(m.Status), time.Time{}
		if c := g.since[m.Name]; c.state == state {
			since = c.at
		}
		out = append(out, Member{Name: m.Name, URL: m.Tags[tagURL], Version: m.Tags[tagVersion], State: state, Since: since})
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Close tells the others that this replica stops, and stops.
func (g *Gossip) Close() error {
	if g == nil {
		return nil
	}
	left := g.serf.Leave() // fails if nobody confirms it in time
	err := g.serf.Shutdown()
	g.work.Wait()
	if err = errors.Join(left, err); err != nil {
		return fmt.Errorf("leave the replicas: %w", err)
	}
	return nil
}
