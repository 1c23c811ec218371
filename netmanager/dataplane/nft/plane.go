package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Plane is a dataplane.Plane in one nftables table.
type Plane struct {
	prefix string
	host   *host
	m      *model
	base   plane.Usage // counts of tables that Sync replaced
}

// New returns a plane in the network namespace of the calling thread. All its names begin with
// prefix. It changes nothing.
func New(prefix string) (*Plane, error) {
	if prefix == "" || len(prefix) > 7 { // device names append eight characters
		return nil, fmt.Errorf("prefix %q is not 1 to 7 letters: %w", prefix, api.ErrInvalid)
	}
	h, err := newHost(prefix)
	if err != nil {
		return nil, err
	}
	return &Plane{prefix: prefix, host: h}, nil
}

// Sync replaces the table in one transaction. It ends the flows that s denies or whose instance is
// gone; the others stay in connection tracking.
func (p *Plane) Sync(_ context.Context, s plane.State) error {
	if err := dataplane.CheckPrefix(p.prefix, s.Node); err != nil {
		return err
	}
	m := newModel(newSets(p.table()))
	err := p.replace(m, plane.Change{
		Node: &s.Node, SetEndpoints: s.Endpoints, SetServices: s.Services,
		SetSources: s.Sources, Allow: s.Allowed, SetPeers: s.Peers,
	})
	if err != nil {
		return fmt.Errorf("sync nftables: %w", err)
	}
	return p.host.end(m.invalid, m)
}

// replace fills the empty model m with c and replaces the table.
func (p *Plane) replace(m *model, c plane.Change) error {
	d, err := m.fill(c, p.host.device)
	if err != nil {
		return err
	}
	// Missing counters are not an error: the table may be of another version or incomplete.
	used, err := p.read()
	if err != nil {
		used = p.base
	}
	networks, err := p.host.networks()
	if err != nil {
		return err
	}
	x := newBatch()
	const service = 720 // bytes, including its backends
	x.b = slices.Grow(x.b, 64<<10+service*len(m.services))
	p.wipe(x)
	t := table{batch: x, Table: p.table(), sets: m.sets, node: m.node, maxFlows: p.host.flowLimit()}
	fams := families(m.node.Ranges)
	outside := outsideRules(fams, m.node.Open, slices.Concat(m.node.Closed, networks, dataplane.Closed, []netip.Prefix{m.node.Ranges.Instances6, m.node.Ranges.Services6}))
	t.base(p.host.index(m.node.Queue), outside)
	t.write(d)
	if err := p.host.commit(x); err != nil {
		return err
	}
	p.m, p.base = m, used
	return nil
}

// Apply changes the elements of c. If the table is not as the plane left it, as after a flush
// of the ruleset, it replaces the table.
func (p *Plane) Apply(_ context.Context, c plane.Change) error {
	if p.m == nil {
		return dataplane.NotSynced("change")
	}
	reassigned := p.m.reassigned(c)
	d, err := p.m.step(c, p.host.device)
	if err != nil {
		return fmt.Errorf("change nftables: %w", err)
	}
	if err = errReplace; c.Node == nil {
		t := table{batch: newBatch(), Table: p.table(), sets: d.model.sets, node: d.node}
		t.write(d)
		err = p.host.commit(t.batch)
	}
	if err != nil {
		if again := p.replace(newModel(newSets(p.table())), p.m.state()); again != nil {
			d.back()
			return fmt.Errorf("change nftables: %w", errors.Join(err, again))
		}
	}
	return p.end(c, reassigned)
}

// errReplace means that a change needs another table instead of changed elements.
var errReplace = errors.New("the table must be replaced")

func (t table) write(d *delta) {
	for _, s := range t.all {
		t.elements(unix.NFT_MSG_DELSETELEM, s, d.removed(s))
	}
	var dead []string
	turns := map[int][]byte{} // rules by number of turns
	for a, was := range d.turns {
		now, there := d.services[a]
		c := serviceChain(a)
		switch {
		case !there && was >= 0:
			dead = append(dead, c)
			continue
		case !there || was == len(now.turns):
			continue
		case was < 0:
			t.addChain(t.Table, c)
		default:
			t.flushChain(t.Table, c)
		}
		n := len(now.turns)
		if turns[n] == nil {
			turns[n] = t.encode(t.Family, t.turns(n))
		}
		t.addRule(t.Table, c, turns[n])
	}
	for _, s := range t.all {
		t.elements(unix.NFT_MSG_NEWSETELEM, s, d.added(s))
	}
	for _, c := range dead {
		t.delChain(t.Table, c)
	}
}

// Usage reads the counters.
func (p *Plane) Usage(context.Context) (plane.Usage, error) {
	if p.m == nil {
		return plane.Usage{}, dataplane.NotSynced("usage")
	}
	return p.read()
}

// read returns the counts of this table and earlier ones. Without a table it returns the
// earlier ones.
func (p *Plane) read() (plane.Usage, error) {
	u := plane.Usage{Services: map[netip.Addr]uint64{}, Backends: map[netip.Addr]uint64{}, Sources: map[netip.Addr]uint64{}, Peers: map[api.PeerKey][2]uint64{}}
	u.Denied, u.Forged = p.base.Denied, p.base.Forged
	conn, err := p.open()
	if conn == nil {
		return u, err
	}
	objects, err := conn.GetObjects(p.table())
	if err != nil {
		return u, fmt.Errorf("read counters: %w", err)
	}
	for _, o := range objects {
		switch c, ok := o.(*nftables.CounterObj); {
		case !ok:
		case c.Name == denied:
			u.Denied += c.Packets
		case c.Name == forged:
			u.Forged += c.Packets
		}
	}
	s := newSets(p.table())
	if p.m != nil {
		s = p.m.sets
	}
	flows := func(set *set, into, base map[netip.Addr]uint64) error {
		counts, err := set.read(conn)
		for key, c := range counts {
			if n := base[key.addr()] + c.Packets; n > 0 {
				into[key.addr()] = n
			}
		}
		return err
	}
	if err := errors.Join(flows(s.services, u.Services, p.base.Services), flows(s.backends, u.Backends, p.base.Backends),
		flows(s.sources, u.Sources, p.base.Sources)); err != nil || p.m == nil {
		return u, err
	}
	u.Peers, err = p.readPeers(conn)
	return u, err
}

// Traffic reads the counters of peers.
func (p *Plane) Traffic(context.Context) (map[api.PeerKey][2]uint64, error) {
	if p.m == nil {
		return nil, dataplane.NotSynced("traffic")
	}
	conn, err := p.open()
	if conn == nil {
		return nil, err
	}
	return p.readPeers(conn)
}

func (p *Plane) readPeers(conn *nftables.Conn) (map[api.PeerKey][2]uint64, error) {
	in, err := p.m.fromPeers.read(conn)
	if err != nil {
		return nil, err
	}
	out, err := p.m.toPeers.read(conn)
	if err != nil {
		return nil, err
	}
	peers := map[api.PeerKey][2]uint64{}
	maps.Copy(peers, p.base.Peers)
	for k, peer := range p.m.peers {
		if peer.out == "" && len(peer.in) == 0 {
			continue
		}
		n := peers[k]
		for _, s := range peer.Subnets {
			for _, sub := range split(s, p.m.node.Ranges.Subnet) {
				if peer.out != "" {
					n[0] += out[address(sub)].Bytes
				}
				for _, dev := range peer.in {
					n[1] += in[device(dev).concat(16, address(sub))].Bytes
				}
			}
		}
		peers[k] = n
	}
	return peers, nil
}

// Remove deletes the plane's tables and the flows through them.
func (p *Plane) Remove(context.Context) error {
	x := newBatch()
	p.wipe(x)
	if err := p.host.commit(x); err != nil {
		return fmt.Errorf("remove nftables: %w", err)
	}
	m := p.m
	p.m, p.base = nil, plane.Usage{}
	if m == nil {
		return nil
	}
	return p.host.end(m.ours, m)
}

// wipe deletes the tables, whether or not they exist.
func (p *Plane) wipe(x *batch) {
	for _, f := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		t := &nftables.Table{Name: p.prefix, Family: f}
		x.addTable(t)
		x.delTable(t)
	}
}

// Close closes the sockets.
func (p *Plane) Close() error { return p.host.close() }

func (p *Plane) table() *nftables.Table {
	return &nftables.Table{Name: p.prefix, Family: nftables.TableFamilyINet}
}

// open returns a connection for reading the table; nil if there is none. It is for one exchange: unread
// messages of an earlier exchange would be taken for an answer.
func (p *Plane) open() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(int(p.host.ns.Fd())))
	if err != nil {
		return nil, err
	}
	ts, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	if !slices.ContainsFunc(ts, func(t *nftables.Table) bool { return t.Name == p.prefix }) {
		return nil, nil
	}
	return conn, nil
}
