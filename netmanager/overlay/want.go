package overlay

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/netmanager/overlay/names"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// want is the interest of a local service in an address or a service, or the
// node's own in a peer. It lasts until it is idle.
type want struct {
	api.Want
	born    uint64       // counts wants, so that the oldest is known
	tries   int          // how often it was asked for since it was last answered
	seq     uint64       // of the NetUp that asked again
	asked   time.Time    // when last
	used    time.Time    // when last
	refusal *api.Refusal // held
	until   time.Time    // up to then a refusal answers for the cluster
	waiting bool         // somebody waits for the answer
	locals  []netip.Addr // of whom packets are held
	names   []string     // that were looked up, in lower case
	saved   bool         // in the journal: since a record answered it
	payer   netip.Addr   // whose bucket stands for the question
}

// asker is what the wants of one service amount to.
type asker struct {
	wants   map[api.Want]struct{}
	pending map[api.Want]struct{} // unanswered or refused
}

// outcome is where a want leads now.
type outcome uint8

const (
	unanswered outcome = iota
	answered
	denied
	nowhere
)

const (
	askMin = 500 * time.Millisecond
	askMax = 30 * time.Second
	// reask bounds how often a want that was answered is doubted.
	reask = 5 * time.Second
	// maxNames and maxWaiters are those that may wait for one want; the others try again.
	maxNames, maxWaiters = 64, 64
)

func (c *Core) outcome(w *want) outcome {
	if w.For == "" { // a peer
		if _, ok := c.peerAt(w.Address); ok {
			return answered
		}
	} else if s := c.leadsTo(w); s != nil {
		if c.mayCall(w.For, s.id) || w.Address.IsValid() && c.mayCall(s.id, w.For) {
			return answered
		}
		return denied
	}
	switch {
	case w.refusal == nil:
		return unanswered
	case w.refusal.Denied:
		return denied
	}
	return nowhere
}

// leadsTo is the known service that the want is about, or nil.
func (c *Core) leadsTo(w *want) *service {
	if w.Service != "" {
		id, ok := names.Match(w.Service, c.spelt[strings.ToLower(string(w.Service))])
		if f := c.wants[folded(w.Want)]; id != w.Service && f != nil && f.refusal != nil {
			return nil // the cluster, which knows more, does not guess
		}
		if s := c.services[id]; ok && s != nil && s.route != nil {
			return s
		}
		return nil
	}
	if a := c.at[w.Address]; a != nil {
		return c.services[a.service()]
	}
	if id, ok := c.owners[w.Address]; ok {
		return c.services[id]
	}
	if id, ok := c.vips[w.Address]; ok {
		if s := c.services[id]; s.route != nil {
			return s
		}
	}
	return nil
}

// miss is a packet that the plane does not know the way of.
func (c *Core) miss(in Miss) {
	if c.lease == nil {
		return
	}
	local, remote := c.lease.Ranges.Untwin(in.Local), c.lease.Ranges.Untwin(in.Remote)
	a := c.at[local]
	if a == nil || !remote.IsValid() || c.lease.Subnet.Contains(remote) && c.at[remote] == nil {
		c.emitLate(ToHold, Refuse{Local: local, Remote: remote})
		return
	}
	if to := c.at[remote]; to != nil {
		c.missHere(a, to)
		return
	}
	w := c.wants[api.Want{Address: remote, For: a.service()}]
	if w != nil && c.outcome(w) == unanswered {
		w.used = c.now
		w.wait(local)
		return
	}
	if !a.bucket.take(c.now) {
		c.emitLate(ToHold, Refuse{Local: local, Remote: remote})
		return
	}
	if w == nil {
		if w = c.want(api.Want{Address: remote, For: a.service()}); w == nil {
			c.emitLate(ToHold, Refuse{Local: local, Remote: remote})
			return
		}
		w.payer = local
	}
	w.used = c.now
	switch o := c.outcome(w); {
	case o == answered:
		// The plane should have known it: it is told again.
		c.refund(w)
		c.tellAgain(remote)
		c.emitLate(ToHold, Release{remote})
	case o == unanswered:
		w.wait(local)
		c.serveMeanwhile(w)
	case w.until.After(c.now) || !c.link.up:
		c.emitLate(ToHold, Refuse{Local: local, Remote: remote, Denied: o == denied})
	default:
		w.wait(local)
		w.payer = local
		c.doubtRefusal(w)
	}
}

// refund gives back what a question took that led somewhere.
func (c *Core) refund(w *want) {
	if a := c.at[w.payer]; a != nil {
		a.bucket.give()
	}
	w.payer = netip.Addr{}
}

// doubtRefusal asks again for what was refused a while ago. An answer that leaves
// the refusal as it is confirms it.
func (c *Core) doubtRefusal(w *want) {
	w.tries = 0
	c.ask(w)
	w.seq = c.link.seq + 1
	c.doubted[w.Want] = struct{}{}
}

// confirm takes that the cluster has heard what was said up to seq.
func (c *Core) confirm(seq uint64) {
	for _, k := range c.inOrder(c.doubted) {
		if w := c.wants[k]; seq >= w.seq {
			delete(c.doubted, k)
			w.until = c.now.Add(c.cfg.Negative)
			c.settle(w)
		}
	}
}

// wait notes an endpoint whose packets are held.
func (w *want) wait(local netip.Addr) {
	w.waiting = true
	if len(w.locals) < maxWaiters && !slices.Contains(w.locals, local) {
		w.locals = append(w.locals, local)
	}
}

// refuse tells those whose packets are held that they lead nowhere.
func (c *Core) refuse(w *want, denied bool) {
	for _, l := range w.locals {
		c.emitLate(ToHold, Refuse{Local: l, Remote: w.Address, Denied: denied})
	}
}

// missHere is a miss between two instances of this node, of which the plane should
// have known.
func (c *Core) missHere(a, to *attachment) {
	denied := !c.mayCall(a.service(), to.service()) && !c.mayCall(to.service(), a.service())
	if denied || !a.bucket.take(c.now) {
		c.emitLate(ToHold, Refuse{Local: a.Address, Remote: to.Address, Denied: denied})
		return
	}
	c.told.endpoints[to.Address] = plane.Endpoint{}
	c.dirty.endpoints[to.Address] = struct{}{}
	c.emitLate(ToHold, Release{to.Address})
}

// serveMeanwhile has a service's instances on this node serve it until the cluster
// says who else does.
func (c *Core) serveMeanwhile(w *want) {
	s := c.services[c.vips[w.Address]]
	if s == nil || s.route != nil || len(s.local) == 0 {
		return
	}
	w.waiting = false
	if !c.mayCall(w.For, s.id) {
		c.refuse(w, true)
		w.locals = nil
		return
	}
	w.locals = nil
	c.touch(s.id)
	c.emitLate(ToHold, Release{w.Address})
}

// stranger is a handshake of a node that no record names. Its claim proves
// nothing; it only says what to ask for.
func (c *Core) stranger(in PeerUnknown) {
	if in.Key == c.self.Key {
		return
	}
	if p := c.peers[in.Key]; p != nil {
		c.tellTunnel(p)
		return
	}
	if c.lease == nil || !c.lease.Ranges.Instances.Contains(in.Claim) || c.lease.Subnet.Contains(in.Claim) || !c.strange.take(c.now) {
		return
	}
	key := api.Want{Address: c.subnetAt(in.Claim).Addr()}
	w := c.wants[key]
	if w == nil {
		if w = c.want(key); w == nil {
			return
		}
	} else if c.now.Sub(w.asked) >= reask || c.outcome(w) != answered && c.now.Sub(w.asked) >= askMin {
		c.ask(w) // what we know of the subnet is of another node: perhaps it is old
	}
	w.used = c.now
}

// subnetAt is the subnet that an address belongs to, as nodes have them.
func (c *Core) subnetAt(a netip.Addr) netip.Prefix {
	if c.lease == nil {
		return netip.Prefix{}
	}
	p, _ := a.Prefix(c.lease.Ranges.Subnet)
	return p
}

// want is a new want, or nil where there is no room for one.
func (c *Core) want(key api.Want) *want {
	a := c.asking[key.For]
	if a == nil {
		a = &asker{wants: map[api.Want]struct{}{}, pending: map[api.Want]struct{}{}}
		c.asking[key.For] = a
	}
	if len(a.pending) >= c.cfg.MaxPending {
		c.drop(c.oldest(a.pending))
	}
	if len(c.wants) >= c.cfg.MaxWants && !c.makeRoom(a) {
		return nil
	}
	c.born++
	w := &want{Want: key, born: c.born, used: c.now}
	c.note(w)
	a = c.asking[key.For]
	a.pending[key] = struct{}{}
	c.timers.Set(timerKey{what: timerIdle, want: key}, c.now.Add(c.cfg.Idle))
	if len(c.wants) == 1 {
		c.timers.Set(timerKey{what: timerPoll}, c.now.Add(c.cfg.Poll))
	}
	c.timers.SetEarlier(timerKey{what: timerRenew}, c.now.Add(c.renewal()))
	if c.outcome(w) == unanswered {
		c.ask(w)
	} else {
		// What answers it is held for another want; the cluster must know of this one too.
		c.link.add(key)
		c.settle(w)
	}
	return w
}

func (c *Core) note(w *want) {
	c.wants[w.Want] = w
	a := c.asking[w.For]
	if a == nil {
		a = &asker{wants: map[api.Want]struct{}{}, pending: map[api.Want]struct{}{}}
		c.asking[w.For] = a
	}
	a.wants[w.Want] = struct{}{}
	if w.Service != "" {
		addTo(c.seeking, strings.ToLower(string(w.Service)), w.Want)
	} else {
		addTo(c.pointing, w.Address, w.Want)
		if id, ok := c.vips[w.Address]; ok {
			c.touch(id) // its plane depends on whether anybody asks
		}
	}
}

// thin drops the oldest of the wants that lead nowhere where they have become too
// many: what they led to is gone.
func (c *Core) thin() {
	if !c.crowded {
		return
	}
	c.crowded = false
	for _, id := range sortedKeys(c.asking) {
		for a := c.asking[id]; len(a.pending) > c.cfg.MaxPending; {
			c.drop(c.oldest(a.pending))
		}
	}
}

// makeRoom drops a want of whoever has the most, one that leads nowhere if there
// is one: nobody starves another. Who has the most itself, and of use, gets no more.
func (c *Core) makeRoom(a *asker) bool {
	most := a
	for _, id := range sortedKeys(c.asking) {
		if o := c.asking[id]; len(o.wants) > len(most.wants) {
			most = o
		}
	}
	switch {
	case len(most.pending) > 0:
		c.drop(c.oldest(most.pending))
	case most == a:
		return false
	default:
		c.drop(c.oldest(most.wants))
	}
	return true
}

func (c *Core) oldest(among map[api.Want]struct{}) *want {
	var first *want
	for k := range among {
		if w := c.wants[k]; first == nil || w.born < first.born {
			first = w
		}
	}
	return first
}

// ask says the want to the cluster, and again after a pause that doubles.
func (c *Core) ask(w *want) {
	pause := min(askMin<<min(w.tries, 10), askMax)
	w.tries++
	w.asked = c.now
	c.link.add(w.Want)
	c.timers.Set(timerKey{what: timerAsk, want: w.Want}, c.now.Add(pause))
}

func (c *Core) askAgain(k api.Want) {
	// While the link is down nothing is asked; linked goes on.
	if w := c.wants[k]; w != nil && c.link.up && (c.outcome(w) == unanswered || w.waiting) {
		c.ask(w)
	}
}

// doubt asks again for what a failure was seen of.
func (c *Core) doubt(s *service) {
	if s.route == nil {
		return
	}
	for _, k := range c.wantsOf(s) {
		if w := c.wants[k]; c.now.Sub(w.asked) >= reask {
			w.asked = c.now
			c.link.add(k)
			return
		}
	}
}

// settle tells those who wait, once the want is answered.
func (c *Core) settle(w *want) {
	o := c.outcome(w)
	a := c.asking[w.For]
	if o == answered {
		c.refund(w)
		delete(a.pending, w.Want)
		if !w.saved {
			w.saved = true
			c.journal.Put(kindWant, wantKey(w.Want), w.Want)
		}
	} else {
		a.pending[w.Want] = struct{}{}
		c.crowded = c.crowded || len(a.pending) > c.cfg.MaxPending
	}
	if o == unanswered {
		if !c.timers.Has(timerKey{what: timerAsk, want: w.Want}) && c.link.up {
			c.ask(w)
		}
		return
	}
	w.tries = 0
	c.timers.Clear(timerKey{what: timerAsk, want: w.Want})
	if !w.waiting {
		return
	}
	w.waiting = false
	if w.Address.IsValid() && w.For != "" {
		if o == answered {
			c.emitLate(ToHold, Release{w.Address})
		} else {
			c.refuse(w, o == denied)
		}
	}
	w.locals = nil
	for _, n := range w.names {
		c.emitLate(ToResolver, Answered{n})
	}
	w.names = nil
}

// settleFor settles all that a service wants: what it may call has changed.
func (c *Core) settleFor(id api.ServiceID) {
	if a := c.asking[id]; a != nil {
		for _, k := range c.inOrder(a.wants) {
			c.settle(c.wants[k])
		}
	}
}

// settleAbout settles the wants that are about a service.
func (c *Core) settleAbout(s *service) {
	for _, k := range c.wantsOf(s) {
		c.settle(c.wants[k])
	}
}

// settleSpellings settles what else is wanted by that name: whether it is guessed
// at depends on whether w is refused.
func (c *Core) settleSpellings(w *want) {
	if w.Service == "" || w.Want != folded(w.Want) {
		return
	}
	for _, k := range c.inOrder(c.seeking[string(w.Service)]) {
		if k.For == w.For && k != w.Want {
			c.settle(c.wants[k])
		}
	}
}

func (c *Core) settleAt(a netip.Addr) {
	for _, k := range c.inOrder(c.pointing[a]) {
		c.settle(c.wants[k])
	}
}

// wantsOf are the wants that lead to a service's route, in the order of their birth.
func (c *Core) wantsOf(s *service) []api.Want {
	all := map[api.Want]struct{}{}
	for k := range c.seeking[strings.ToLower(string(s.id))] {
		all[k] = struct{}{}
	}
	for _, v := range s.vips {
		for k := range c.pointing[v] {
			all[k] = struct{}{}
		}
	}
	return c.inOrder(all)
}

func (c *Core) inOrder(set map[api.Want]struct{}) []api.Want {
	if len(set) == 0 {
		return nil
	}
	out := make([]api.Want, 0, len(set))
	for k := range set {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b api.Want) int { return cmp.Compare(c.wants[a].born, c.wants[b].born) })
	return out
}

// used compares what the plane counted with what it counted before. Whatever
// moved is in use.
func (c *Core) used(u plane.Usage) {
	touch := func(set map[api.Want]struct{}) {
		for k := range set {
			c.wants[k].used = c.now
		}
	}
	route := func(s *service) {
		if s != nil && s.route != nil {
			for _, k := range c.wantsOf(s) {
				c.wants[k].used = c.now
			}
		}
	}
	for a, n := range u.Services {
		if n != c.usage.Services[a] {
			route(c.services[c.vips[a]])
		}
	}
	for _, m := range []struct{ now, before map[netip.Addr]uint64 }{{u.Backends, c.usage.Backends}, {u.Sources, c.usage.Sources}} {
		for a, n := range m.now {
			if n != m.before[a] {
				touch(c.pointing[a])
				route(c.services[c.owners[a]])
				if k, ok := c.peerAt(a); ok {
					for _, p := range c.peers[k].record.Subnets {
						touch(c.pointing[p.Addr()])
					}
				}
			}
		}
	}
	c.usage = u
}

func (c *Core) poll() {
	if len(c.wants) > 0 {
		c.emit(ToPlane, Ask{})
		c.timers.Set(timerKey{what: timerPoll}, c.now.Add(c.cfg.Poll))
	}
}

// idle drops a want that was not used for long. It looks only after the plane was
// asked since, so that what is used is not missed.
func (c *Core) idle(k api.Want) {
	w := c.wants[k]
	if w == nil || c.kept(w) {
		return
	}
	if end := w.used.Add(c.cfg.Idle + c.cfg.Poll); end.After(c.now) {
		c.timers.Set(timerKey{what: timerIdle, want: k}, end)
		return
	}
	c.drop(w)
}

// kept says of a want that it stays however idle it is: what it leads to is known,
// and while the cluster is away nobody could say it again.
func (c *Core) kept(w *want) bool { return !c.link.up && c.outcome(w) == answered }

// resetIdle has every want be idle from now on at the earliest.
func (c *Core) resetIdle() {
	for _, id := range sortedKeys(c.asking) {
		for _, k := range c.inOrder(c.asking[id].wants) {
			c.wants[k].used = c.now
			c.timers.Set(timerKey{what: timerIdle, want: k}, c.now.Add(c.cfg.Idle))
		}
	}
}

// drop ends a want, and lets go of what no other want leads to.
func (c *Core) drop(w *want) {
	delete(c.wants, w.Want)
	delete(c.doubted, w.Want)
	a := c.asking[w.For]
	delete(a.wants, w.Want)
	delete(a.pending, w.Want)
	if len(a.wants) == 0 {
		delete(c.asking, w.For)
	}
	c.timers.Clear(timerKey{what: timerAsk, want: w.Want})
	c.timers.Clear(timerKey{what: timerIdle, want: w.Want})
	if w.saved {
		c.journal.Delete(kindWant, wantKey(w.Want))
	}
	c.setRefusal(w, nil)
	c.link.drop(w.Want)
	c.refuse(w, false)
	if w.Service != "" {
		fold := strings.ToLower(string(w.Service))
		removeFrom(c.seeking, fold, w.Want)
		c.settleSpellings(w)
		for _, id := range slices.Clone(c.spelt[fold]) {
			c.release(c.services[id])
		}
		return
	}
	removeFrom(c.pointing, w.Address, w.Want)
	if id, ok := c.vips[w.Address]; ok {
		c.touch(id)
		c.release(c.services[id])
	}
	if len(c.pointing[w.Address]) > 0 {
		return
	}
	c.loseSource(w.Address)
	if k, ok := c.peerAt(w.Address); ok && w.For == "" {
		c.losePeer(k)
	}
}

// release lets go of a route that no want leads to.
func (c *Core) release(s *service) {
	if s != nil && s.route != nil && len(c.wantsOf(s)) == 0 {
		c.loseRoute(s, false)
	}
}

// leave is when a service's last instance has left the node. What it used is kept
// for a while, for the instance may only be started anew, and the cluster may be
// away by then; or wanted on behalf of another local service that may call it, and
// perhaps does.
func (c *Core) leave(id api.ServiceID) {
	a := c.asking[id]
	if a == nil {
		return
	}
	for _, k := range c.inOrder(a.wants) {
		w := c.wants[k]
		if w == nil {
			continue // it made room for an heir's
		}
		if _, pending := a.pending[k]; pending || c.now.Sub(w.used) >= c.cfg.Idle && !c.kept(w) {
			c.drop(w)
		} else if heir := c.heir(w); heir != "" {
			n := k
			n.For = heir
			if c.wants[n] == nil {
				if nw := c.want(n); nw != nil {
					nw.used = w.used
				}
			}
			if c.wants[k] != nil { // it did not have to make room
				c.drop(w)
			}
		}
	}
	if c.asking[id] != nil {
		c.timers.Set(timerKey{what: timerLeft, service: id}, c.now.Add(c.cfg.Quarantine))
	}
}

// left drops what a service wanted that has not come back.
func (c *Core) left(id api.ServiceID) {
	a := c.asking[id]
	if s := c.services[id]; a == nil || s != nil && len(s.local) > 0 {
		return
	}
	for _, k := range c.inOrder(a.wants) {
		c.drop(c.wants[k])
	}
}

func (c *Core) heir(w *want) api.ServiceID {
	s := c.leadsTo(w)
	if s == nil {
		return ""
	}
	heir := api.ServiceID("")
	for _, a := range c.attached {
		if o := a.service(); o != w.For && (heir == "" || o < heir) && (c.mayCall(o, s.id) || c.mayCall(s.id, o)) {
			heir = o
		}
	}
	return heir
}

func (c *Core) setRefusal(w *want, r *api.Refusal) {
	if w.refusal != nil {
		c.held = c.held.Toggle(w.refusal.Digest())
	} else if r != nil {
		c.link.run.Add(interest.RefusalOf(w.Want, false))
	}
	w.refusal = r
	if r != nil {
		c.held = c.held.Toggle(r.Digest())
		w.until = c.now.Add(c.cfg.Negative)
	}
}

func wantKey(w api.Want) string {
	a := ""
	if w.Address.IsValid() {
		a = w.Address.String()
	}
	return a + " " + string(w.Service) + " " + string(w.For)
}

func addTo[K, V comparable](m map[K]map[V]struct{}, k K, v V) {
	if m[k] == nil {
		m[k] = map[V]struct{}{}
	}
	m[k][v] = struct{}{}
}

func removeFrom[K, V comparable](m map[K]map[V]struct{}, k K, v V) {
	delete(m[k], v)
	if len(m[k]) == 0 {
		delete(m, k)
	}
}
