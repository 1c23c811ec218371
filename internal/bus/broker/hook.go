package broker

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/refusals"
)

// maxKeepAlive bounds a client's keepalive, in seconds. It also applies to clients without
// one.
const maxKeepAlive = 600

// discard is the topic for wills that must not be published. No client can read it.
const discard = "$discard"

// guard is the hook of mochi-mqtt for access rights, limits and counters.
type guard struct {
	mqtt.HookBase
	srv     *mqtt.Server
	stats   *Stats
	refused *refusals.Log

	mu       sync.Mutex // guards both below
	sessions map[string]*mqtt.Client
	count    uint64 // of sessions so far
}

func (*guard) ID() string { return "guard" }

func (*guard) Provides(b byte) bool {
	return slices.Contains([]byte{
		mqtt.OnConnectAuthenticate, mqtt.OnACLCheck, mqtt.OnSessionEstablish, mqtt.OnPublish,
		mqtt.OnPacketSent, mqtt.OnPublishDropped, mqtt.OnWill, mqtt.OnDisconnect,
	}, b)
}

// OnConnectAuthenticate decides whether the identified connection may have its session, and names
// the session after the node, so that node "a" with client id "a-b" does not share a name with
// node "a-b". The client's ID also has a number, because mochi-mqtt cleans up ended sessions by ID:
// without it, a newer session could lose its subscriptions.
func (g *guard) OnConnectAuthenticate(cl *mqtt.Client, pk packets.Packet) bool {
	c := cl.Net.Conn.(*conn)
	suffix, ok := strings.CutPrefix(pk.Connect.ClientIdentifier, string(c.id))
	if !ok || suffix != "" && suffix[0] != '-' {
		g.refuse(c, "client id", pk.Connect.ClientIdentifier)
		return false
	}
	if pk.Connect.WillFlag && (!topic.MayPublish(c.id, pk.Connect.WillTopic) || pk.Connect.WillQos > 1) {
		g.refuse(c, "will", pk.Connect.WillTopic)
		return false
	}
	c.session = string(c.id) + "/" + suffix
	g.mu.Lock()
	g.count++
	cl.ID = c.session + "#" + strconv.FormatUint(g.count, 10)
	g.mu.Unlock()
	cl.Properties.Will.Retain = false
	cl.Properties.Clean = true // no persistent sessions: state is repeated instead
	if cl.State.Keepalive == 0 || cl.State.Keepalive > maxKeepAlive {
		cl.State.Keepalive = maxKeepAlive
	}
	g.stats.Connects.Add(1)
	return true
}

// OnSessionEstablish ends an older session of the same name (MQTT-3.1.4-2).
func (g *guard) OnSessionEstablish(cl *mqtt.Client, _ packets.Packet) {
	name := cl.Net.Conn.(*conn).session
	g.mu.Lock()
	old := g.sessions[name]
	g.sessions[name] = cl
	g.mu.Unlock()
	if old != nil {
		old.Net.Conn.(*conn).superseded.Store(true)
		_ = g.srv.DisconnectClient(old, packets.ErrSessionTakenOver) // returns that code
	}
}

// OnDisconnect removes a session that has ended.
func (g *guard) OnDisconnect(cl *mqtt.Client, _ error, _ bool) {
	c, ok := cl.Net.Conn.(*conn)
	if !ok {
		return // the cluster's inline client
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sessions[c.session] == cl {
		delete(g.sessions, c.session)
	}
}

// OnWill suppresses the will of a session that was replaced: its node is alive, and the will might
// arrive after the new session's first heartbeat.
func (g *guard) OnWill(cl *mqtt.Client, w mqtt.Will) (mqtt.Will, error) {
	if cl.Net.Conn.(*conn).superseded.Load() {
		w.TopicName = discard
	}
	return w, nil
}

func (g *guard) OnACLCheck(cl *mqtt.Client, name string, write bool) bool {
	c := cl.Net.Conn.(*conn)
	if write {
		if !topic.MayPublish(c.id, name) {
			g.refuse(c, "publish", name)
			return false
		}
		return true
	}
	if !topic.MaySubscribe(c.id, name) {
		g.refuse(c, "subscribe", name)
		return false
	}
	return true
}

// OnPublish counts messages, and clears the retain flag unless the topic's leaf allows it, so that
// nodes cannot fill the broker's memory.
func (g *guard) OnPublish(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if cl.Net.Inline {
		return pk, nil
	}
	g.stats.MessagesIn.Add(1)
	if _, leaf, ok := topic.Parse(pk.TopicName); !ok || !leaf.Retain {
		pk.FixedHeader.Retain = false
	}
	return pk, nil
}

func (g *guard) OnPacketSent(_ *mqtt.Client, pk packets.Packet, _ []byte) {
	if pk.FixedHeader.Type == packets.Publish {
		g.stats.MessagesOut.Add(1)
	}
}

func (g *guard) OnPublishDropped(*mqtt.Client, packets.Packet) { g.stats.Dropped.Add(1) }

// refuse counts a refusal and logs the first one of each connection. The rate of lines per node is
// limited too.
func (g *guard) refuse(c *conn, what, name string) {
	g.stats.Refusals.Add(1)
	if c.complained.CompareAndSwap(false, true) {
		g.refused.Warn([]string{string(c.id)}, "node", c.id, "remote", c.RemoteAddr(), "what", what, "name", name)
	}
}
