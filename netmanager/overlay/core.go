// Package overlay is the core of a netmanager: which addresses the node's
// instances have, what of the network they have asked for, which backend a
// service's flows go to, and how each peer is reached. It asks the cluster for
// what its instances want, keeps it current while it is used, and goes on with
// what it knows when the cluster is away.
//
// It leaves to others how the kernel is told (netmanager/dataplane and link), how
// peers are found and spoken to (netmanager/tunnel), and the transport to the
// cluster. Orders are carried out in the order in which they are given; an order to
// the hold after the plane's that came before it. A plane that is new, or whose
// last change failed, is made what Core.Plane says; every Change that came before
// that may follow.
//
//	c := overlay.New(overlay.Config{Prefix: "tl", Tunnel: "tltun", Hold: "tlhold"})
//	err := c.Restore(docs)
//	c.Step(now, overlay.Start{})
//	eff := c.Step(now, overlay.Miss{Local: client, Remote: semantic})
package overlay

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/ipam"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Config is what a netmanager's core needs to know. Zero values mean the defaults.
type Config struct {
	Prefix string // begins the names of our devices: "tl"
	Tunnel string // the tunnel's device: "tltun"
	Hold   string // the hold's device: "tlhold"
	VXLAN  uint16 // UDP port of the VXLAN device; 0: none is used
	MTU    int    // of attached instances: 1400
	// Closed and Open are plane.Node's.
	Closed, Open []netip.Prefix

	Quarantine time.Duration // of addresses that were given back: 2 min
	Idle       time.Duration // a want that is unused for so long is dropped: 5 min
	Negative   time.Duration // for which a refusal answers without asking again: 5 s
	Poll       time.Duration // between two looks at what is used, while something is wanted: 60 s
	MaxWants   int           // in all: 16,000, which is what one message takes where all names are as long as names may be
	MaxPending int           // of one service, unanswered or refused: 256
}

func (c Config) withDefaults() Config {
	c.Prefix = orDefault(c.Prefix, "tl")
	c.Tunnel = orDefault(c.Tunnel, "tltun")
	c.Hold = orDefault(c.Hold, "tlhold")
	c.MTU = orDefault(c.MTU, 1400)
	c.Quarantine = orDefault(c.Quarantine, 2*time.Minute)
	c.Idle = orDefault(c.Idle, 5*time.Minute)
	c.Negative = orDefault(c.Negative, 5*time.Second)
	c.Poll = orDefault(c.Poll, time.Minute)
	c.MaxWants = orDefault(c.MaxWants, 16000)
	c.MaxPending = orDefault(c.MaxPending, 256)
	return c
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// Core is a node's part of the network. It has one owner.
type Core struct {
	cfg       Config
	boot      uint64
	lease     *api.NetLease
	self      Self
	described bool // self has come
	coord     place
	measure   map[api.PeerKey]*measure // peers that are measured whether or not they are spoken to
	freed     map[netip.Addr]api.Key   // that rested when the last life ended, and who had them

	pool     *ipam.Pool // of the lease's subnet; nil without one
	attached map[api.Key]*attachment
	at       map[netip.Addr]*attachment
	ports    map[hostPort]api.Key

	services map[api.ServiceID]*service
	spelt    map[string][]api.ServiceID                 // known services, by their name in lower case
	vips     map[netip.Addr]api.ServiceID               // semantic addresses, of whom said so last
	owners   map[netip.Addr]api.ServiceID               // remote instances' addresses, likewise
	sources  map[netip.Addr]api.Source                  // held
	peers    map[api.PeerKey]*peer                      // of any record
	behind   map[api.PeerKey]map[api.ServiceID]struct{} // services by the peers that host them
	subnets  map[netip.Prefix]api.PeerKey               // of whom said so last
	lengths  map[int]int                                // how many of subnets have which length
	idents   step.Counter                               // of services
	known    map[api.ServiceID]plane.Ident              // idents by service
	wants    map[api.Want]*want
	seeking  map[string]map[api.Want]struct{}     // wants by service, in lower case
	pointing map[netip.Addr]map[api.Want]struct{} // wants by address
	asking   map[api.ServiceID]*asker             // what each service wants
	doubted  map[api.Want]struct{}                // refused wants that were asked for again
	crowded  bool                                 // somebody has too many pending
	born     uint64                               // counts wants
	held     api.Digest
	link     link
	usage    plane.Usage
	strange  bucket
	notices  notices
	traffic  traffic
	rtts     map[servicePair]*api.PairStatus
	gaps     map[api.ServiceID]map[farEnd]*gap // of the services that the cluster asks about

	told    told
	dirty   dirty
	journal step.Journal
	timers  step.Timers[timerKey]
	now     time.Time
	send    []api.Envelope
	late    []api.Envelope // what follows the plane's change
}

type timerKey struct {
	what    timerKind
	want    api.Want
	peer    api.PeerKey
	addr    netip.Addr
	service api.ServiceID
}

type timerKind uint8

const (
	timerAck     timerKind = iota // what was said has not been answered
	timerRenew                    // the wants have to be named again
	timerHeld                     // digests differed
	timerPoll                     // see what is used
	timerAsk                      // a want has not been answered
	timerIdle                     // a want may be idle
	timerFreed                    // an address has rested
	timerPath                     // something about a peer's kernel path lapses
	timerClosest                  // a closer backend is in sight
	timerLeft                     // a service has been away for long
	timerMeasure                  // a peer's round trip is to be measured
	timerPlace                    // it is time to say where the node is
	timerTell                     // a notice was not confirmed by all
	timerMark                     // a peer's word is believed no longer
	timerTerms                    // a peer has not said that it heard our terms
	timerCount                    // see what passes by kernel paths
	timerRetry                    // who leaves has answered what it will
)

// New is the core of a node that nothing is known of yet.
func New(cfg Config) *Core {
	c := &Core{
		cfg:      cfg.withDefaults(),
		attached: map[api.Key]*attachment{},
		at:       map[netip.Addr]*attachment{},
		ports:    map[hostPort]api.Key{},
		services: map[api.ServiceID]*service{},
		spelt:    map[string][]api.ServiceID{},
		vips:     map[netip.Addr]api.ServiceID{},
		owners:   map[netip.Addr]api.ServiceID{},
		sources:  map[netip.Addr]api.Source{},
		peers:    map[api.PeerKey]*peer{},
		behind:   map[api.PeerKey]map[api.ServiceID]struct{}{},
		subnets:  map[netip.Prefix]api.PeerKey{},
		lengths:  map[int]int{},
		known:    map[api.ServiceID]plane.Ident{},
		wants:    map[api.Want]*want{},
		seeking:  map[string]map[api.Want]struct{}{},
		pointing: map[netip.Addr]map[api.Want]struct{}{},
		asking:   map[api.ServiceID]*asker{},
		doubted:  map[api.Want]struct{}{},
		measure:  map[api.PeerKey]*measure{},
		freed:    map[netip.Addr]api.Key{},
		rtts:     map[servicePair]*api.PairStatus{},
		told:     newTold(),
		dirty:    newDirty(),
	}
	c.coord.now = vivaldi.New()
	c.coord.said = c.coord.now
	return c
}

// Step takes one input.
func (c *Core) Step(now time.Time, in Input) step.Effects {
	c.now, c.send, c.late = now, nil, nil
	err := c.take(in)
	c.expire()
	c.thin()
	c.sweep()
	c.tell()
	c.flush()
	c.report()
	return step.Effects{Save: c.journal.Take(), Send: c.send, Wake: c.timers.Next(), Err: err}
}

func (c *Core) take(in Input) error {
	switch in := in.(type) {
	case Start:
		c.start()
	case Self:
		c.describe(in)
	case Link:
		c.linked(in.Up)
	case Down:
		c.down(in.NetDown)
	case Attach:
		return c.attach(in.Attach)
	case Ready:
		c.ready(in)
	case Detach:
		c.detach(in.Key)
	case Drain:
		c.drain(in.Key)
	case Exited:
		c.exited(in)
	case Miss:
		c.miss(in)
	case Query:
		c.query(in)
	case PeerUnknown:
		c.stranger(in)
	case Path:
		c.path(in)
	case Measured:
		c.measured(in)
	case Sampled:
		c.sampled(in)
	case Used:
		c.used(in.Usage)
	case Session:
		c.session(in)
		c.resume(in.Key)
	case Noticed:
		c.noticed(in)
	case Heeded:
		c.heeded(in)
	case Stray:
		c.stray(in)
	case Agreed:
		c.agreed(in)
	case Probed:
		c.probed(in)
	case Arrived:
		c.arrived(in)
	case Counted:
		c.counted(in)
	case Tick:
	}
	return nil
}

// start begins a life: the plane is made what Plane says, the tunnel is told of
// everybody.
func (c *Core) start() {
	// The wall clock only keeps the number growing where the store was lost.
	c.boot = max(c.boot+1, uint64(max(0, c.now.Unix())))
	c.saveMeta()
	c.dirty.all, c.dirty.quiet = true, true
	if c.lease != nil {
		c.emit(ToTunnel, TunnelSelf{*c.lease})
	}
	c.emit(ToTunnel, TunnelCoord{c.coord.now})
	for _, k := range sortedKeys(c.peers) {
		c.peers[k].untold = true
		c.dirty.peers[k] = struct{}{}
	}
	c.remember(c.freed)
	for _, a := range sortedKeys(c.freed) {
		c.pool.Give(c.now, a)
		c.timers.Set(timerKey{what: timerFreed, addr: a}, c.now.Add(c.cfg.Quarantine))
	}
	c.freed = nil
	c.resetIdle() // who used what when is not known
	if len(c.wants) > 0 {
		c.timers.Set(timerKey{what: timerPoll}, c.now.Add(c.cfg.Poll))
	}
	for _, k := range sortedKeys(c.peers) {
		c.awaitMarks(c.peers[k])
		c.resumeKernel(c.peers[k])
		c.resumeTalk(c.peers[k])
	}
	c.link.whole, c.link.self, c.link.lost = true, true, c.now
}

func (c *Core) expire() {
	for {
		k, ok := c.timers.Pop(c.now)
		if !ok {
			return
		}
		switch k.what {
		case timerAck:
			c.unanswered()
		case timerHeld:
			c.link.whole, c.link.self = true, true
		case timerRenew:
			c.link.whole = c.link.whole || len(c.wants) > 0
		case timerPoll:
			c.poll()
		case timerAsk:
			c.askAgain(k.want)
		case timerIdle:
			c.idle(k.want)
		case timerFreed:
			c.journal.Delete(kindFreed, k.addr.String())
		case timerPath:
			if p := c.peers[k.peer]; p != nil {
				c.choosePath(p)
			}
		case timerMeasure:
			c.measureAgain(k.peer)
		case timerPlace:
			c.sayPlace()
		case timerLeft:
			c.left(k.service)
		case timerTell:
			c.tellPeers()
		case timerTerms:
			if q := c.peers[k.peer]; q != nil {
				c.sayTerms(q)
			}
		case timerCount:
			c.count()
		case timerRetry:
			c.retryAt(k.addr)
		case timerMark:
			if q := c.peers[k.peer]; q != nil {
				c.unmark(q)
			}
		case timerClosest:
			if s := c.services[k.service]; s != nil {
				c.weigh(s, api.PeerKey{}, true)
			}
		}
	}
}

func (c *Core) emit(to api.Addr, msg any) {
	c.send = append(c.send, api.Envelope{To: to, Msg: msg, Volatile: volatile(msg)})
}

// emitLate is for what is true once the plane has taken this step's change.
func (c *Core) emitLate(to api.Addr, msg any) {
	c.late = append(c.late, api.Envelope{To: to, Msg: msg, Volatile: volatile(msg)})
}
