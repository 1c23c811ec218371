// Package endpoints keeps the workloads that are attached to a node's network: their addresses, host
// ports and state. It allocates addresses from the node's subnet. A freed address is in quarantine until
// caches and kernels of other nodes have dropped it. The package does no I/O; its journal has the
// documents.
//
//	m := endpoints.New(2 * time.Minute)
//	err := m.SetSubnet(lease.Subnet)
//	a, changed, err := m.Attach(now, attach)
package endpoints

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/ipam"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

// The kinds of documents.
const (
	KindAttachment = "attachment" // an Attachment, by its key
	KindFreed      = "freed"      // an address in quarantine, by the address
)

// MinQuarantine is the shortest quarantine, used if the subnet has no other free address. By then kernels
// have dropped the state of the address, and peers have received new routes from their clusters.
const MinQuarantine = 5 * time.Second

// Attachment is a workload that has an address.
type Attachment struct {
	Attach   wire.Attach `json:"attach"`
	Address  netip.Addr  `json:"address"`
	Ready    bool        `json:"ready,omitempty"`   // it listens, or has passed its health checks
	Unready  bool        `json:"unready,omitempty"` // it was ready, and fails its health checks now
	Draining bool        `json:"draining,omitempty"`
}

// Service returns the service of the attachment's instance.
func (a Attachment) Service() api.ServiceID { return a.Attach.Instance.Service() }

// Accepting reports whether new flows may go to the attachment.
func (a Attachment) Accepting() bool { return a.Serving() && !a.Draining }

// Serving reports whether the attachment is a backend of its service, which may be draining.
func (a Attachment) Serving() bool { return a.Ready && !a.Unready }

// freed is the document of an address in quarantine. Key is the last workload that had it, if known.
type freed struct {
	Key wire.Key `json:"key"`
}

type hostPort struct {
	port     uint16
	protocol string
}

// Machine keeps the attachments of a node.
type Machine struct {
	quarantine time.Duration
	pool       *ipam.Pool // nil without a subnet
	byKey      map[wire.Key]*Attachment
	byAddress  map[netip.Addr]*Attachment
	byService  map[api.ServiceID]map[wire.Key]*Attachment
	ports      map[hostPort]wire.Key
	restored   map[netip.Addr]wire.Key // addresses in quarantine, until Start
	journal    step.Journal
	timers     step.Timers[netip.Addr] // ends of quarantines
}

// New returns a machine without a subnet.
func New(quarantine time.Duration) *Machine {
	return &Machine{
		quarantine: quarantine,
		byKey:      map[wire.Key]*Attachment{},
		byAddress:  map[netip.Addr]*Attachment{},
		byService:  map[api.ServiceID]map[wire.Key]*Attachment{},
		ports:      map[hostPort]wire.Key{},
		restored:   map[netip.Addr]wire.Key{},
	}
}

// SetSubnet sets the subnet from which addresses are allocated. Attachments keep their addresses. It
// fails if the subnet is too small.
func (m *Machine) SetSubnet(subnet netip.Prefix) error {
	if m.pool != nil && m.pool.Prefix() == subnet {
		return nil
	}
	pool, err := ipam.NewPool(subnet, ipam.Options{First: wire.SubnetFirst, Last: wire.SubnetLast, Quarantine: m.quarantine})
	if err != nil {
		return err
	}
	for a := range m.byAddress {
		_ = pool.Mark(a) // addresses of an earlier subnet are not in the pool
	}
	m.pool = pool
	return nil
}

// Restore loads a document of an earlier process, after SetSubnet. It returns the attachment in it, if
// any.
func (m *Machine) Restore(d store.Doc) (Attachment, error) {
	m.journal.Restored(d)
	a := &Attachment{}
	if d.Kind == KindFreed {
		return *a, m.restoreFreed(d)
	}
	if err := json.Unmarshal(d.Data, a); err != nil {
		return *a, err
	}
	if o := m.byAddress[a.Address]; o != nil {
		return *a, fmt.Errorf("%s and %s both have address %s: %w", o.Attach.Key, a.Attach.Key, a.Address, store.ErrCorrupt)
	}
	if m.pool != nil {
		_ = m.pool.Mark(a.Address)
	}
	m.put(a)
	return *a, nil
}

// restoreFreed puts an address into quarantine. It deletes the document if the address is in use or
// outside the subnet.
func (m *Machine) restoreFreed(d store.Doc) error {
	var r freed
	if err := json.Unmarshal(d.Data, &r); err != nil {
		return err
	}
	a, err := netip.ParseAddr(d.Key)
	if err != nil || m.pool == nil || m.byAddress[a] != nil || m.pool.Mark(a) != nil {
		m.journal.Delete(d.Kind, d.Key)
		return nil
	}
	m.restored[a] = r.Key
	return nil
}

// Start begins a process lifetime. It returns the addresses in quarantine with the last workload of each.
// Their quarantine starts again, because its end is not saved.
func (m *Machine) Start(now time.Time) map[netip.Addr]wire.Key {
	all := m.restored
	m.restored = nil
	for _, a := range sorted.Addrs(all) {
		m.pool.Give(now, a)
		m.timers.Set(a, now.Add(m.quarantine))
	}
	return all
}

// Save returns the documents that changed.
func (m *Machine) Save() []store.Doc { return m.journal.Take() }

// Next returns when Expire has to be called; zero: never.
func (m *Machine) Next() time.Time { return m.timers.Next() }

// Expire ends the quarantine of one address.
func (m *Machine) Expire(now time.Time) {
	if a, ok := m.timers.Pop(now); ok {
		m.journal.Delete(KindFreed, a.String())
	}
}

// Attach gives a workload an address. A workload that is already attached keeps its address and, if its
// network namespace is the same, its state. changed is false if nothing changed. Errors: ErrInvalid
// (instance id), ErrUnavailable (no subnet, or all free addresses are in quarantine), ErrFull (no free
// address), ErrConflict (a newer placement is attached, or a host port is taken).
func (m *Machine) Attach(now time.Time, a wire.Attach) (at Attachment, changed bool, err error) {
	if _, err := api.ParseInstanceID(string(a.Instance)); err != nil {
		return at, false, err
	}
	old := m.byKey[a.Key]
	if old == nil {
		if m.pool == nil {
			return at, false, fmt.Errorf("attach %s: the node has no network lease yet: %w", a.Key, api.ErrUnavailable)
		}
		for k := range m.byService[a.Instance.Service()] {
			if k.Instance == a.Instance && k.Epoch > a.Epoch {
				return at, false, fmt.Errorf("attach %s: the newer placement %s is attached: %w", a.Key, k.Epoch, api.ErrConflict)
			}
		}
	}
	for _, p := range a.Ports {
		if k, ok := m.ports[hostPort{p.Host, p.Protocol}]; ok && k != a.Key {
			return at, false, fmt.Errorf("attach %s: host port %d/%s belongs to %s: %w", a.Key, p.Host, p.Protocol, k, api.ErrConflict)
		}
	}
	at.Attach = a
	if old == nil {
		if at.Address, err = m.address(now); err != nil {
			return Attachment{}, false, fmt.Errorf("attach %s: %w", a.Key, err)
		}
	} else {
		at.Address = old.Address
		if old.Attach.NetNS == a.NetNS { // otherwise it is a restarted workload
			at.Ready, at.Unready, at.Draining = old.Ready, old.Unready && a.Checked, old.Draining
		}
		if step.SameJSON(*old, at) {
			return at, false, nil
		}
		m.remove(old)
	}
	m.put(&at)
	m.journal.Put(KindAttachment, a.Key.String(), at)
	return at, true, nil
}

// address takes a free address. If all free addresses are in quarantine, as when all workloads of a node
// are replaced at once, it takes the one that has been there longest.
func (m *Machine) address(now time.Time) (netip.Addr, error) {
	addr, err := m.pool.Take(now, netip.Addr{})
	if err == nil {
		return addr, nil
	}
	if addr, err = m.pool.TakeEarly(now, min(MinQuarantine, m.quarantine)); err == nil {
		m.timers.Clear(addr)
		m.journal.Delete(KindFreed, addr.String())
	} else if m.pool.Resting(now) == 0 {
		err = fmt.Errorf("all addresses of %s are taken: %w", m.pool.Prefix(), api.ErrFull)
	}
	return addr, err
}

func (m *Machine) put(a *Attachment) {
	m.byKey[a.Attach.Key], m.byAddress[a.Address] = a, a
	for _, p := range a.Attach.Ports {
		m.ports[hostPort{p.Host, p.Protocol}] = a.Attach.Key
	}
	id := a.Service()
	if m.byService[id] == nil {
		m.byService[id] = map[wire.Key]*Attachment{}
	}
	m.byService[id][a.Attach.Key] = a
}

func (m *Machine) remove(a *Attachment) {
	delete(m.byKey, a.Attach.Key)
	delete(m.byAddress, a.Address)
	for _, p := range a.Attach.Ports {
		delete(m.ports, hostPort{p.Host, p.Protocol})
	}
	id := a.Service()
	if delete(m.byService[id], a.Attach.Key); len(m.byService[id]) == 0 {
		delete(m.byService, id)
	}
}

// Detach removes an attachment and puts its address into quarantine, also across restarts. ok is false if
// there is no such attachment.
func (m *Machine) Detach(now time.Time, k wire.Key) (at Attachment, ok bool) {
	a := m.byKey[k]
	if a == nil {
		return at, false
	}
	m.remove(a)
	m.journal.Delete(KindAttachment, k.String())
	if m.pool != nil && m.pool.Taken(a.Address) {
		m.pool.Give(now, a.Address)
		m.journal.Put(KindFreed, a.Address.String(), freed{k})
		m.timers.Set(a.Address, now.Add(m.quarantine))
	}
	return *a, true
}

// Ready marks an attachment as listening. ok is false if it is already marked, if netns is not its
// current network namespace, or if its health checks decide whether it is ready.
func (m *Machine) Ready(k wire.Key, netns string) (at Attachment, ok bool) {
	a := m.byKey[k]
	if a == nil || a.Ready || a.Attach.NetNS != netns || a.Attach.Checked {
		return at, false
	}
	a.Ready = true
	m.journal.Put(KindAttachment, k.String(), a)
	return *a, true
}

// SetReady sets whether an attachment whose health checks decide that is ready. ok is false if nothing
// changes.
func (m *Machine) SetReady(k wire.Key, ready bool) (at Attachment, ok bool) {
	a := m.byKey[k]
	if a == nil || !a.Attach.Checked || a.Serving() == ready {
		return at, false
	}
	a.Unready = !ready // it stays Ready, which is not a change of a new attachment
	a.Ready = a.Ready || ready
	m.journal.Put(KindAttachment, k.String(), a)
	return *a, true
}

// Drain marks an attachment as draining. ok is false if it is marked already.
func (m *Machine) Drain(k wire.Key) (at Attachment, ok bool) {
	a := m.byKey[k]
	if a == nil || a.Draining {
		return at, false
	}
	a.Draining = true
	m.journal.Put(KindAttachment, k.String(), a)
	return *a, true
}

// Get returns the attachment with a key.
func (m *Machine) Get(k wire.Key) (Attachment, bool) { return value(m.byKey[k]) }

// At returns the attachment with an address.
func (m *Machine) At(a netip.Addr) (Attachment, bool) { return value(m.byAddress[a]) }

// Has reports whether an attachment has the address.
func (m *Machine) Has(a netip.Addr) bool { return m.byAddress[a] != nil }

// Count returns the number of a service's attachments.
func (m *Machine) Count(id api.ServiceID) int { return len(m.byService[id]) }

// Of lists the attachments of a service, in no order.
func (m *Machine) Of(id api.ServiceID) (out []Attachment) {
	for _, a := range m.byService[id] {
		out = append(out, *a)
	}
	return out
}

// Newest returns the attachment of a service with the highest epoch.
func (m *Machine) Newest(id api.ServiceID) (Attachment, bool) {
	var last *Attachment
	for _, a := range m.byService[id] {
		if last == nil || cmp.Or(cmp.Compare(a.Attach.Epoch, last.Attach.Epoch), cmp.Compare(a.Attach.Instance, last.Attach.Instance)) > 0 {
			last = a
		}
	}
	return value(last)
}

// Services lists, in order, the services that have attachments.
func (m *Machine) Services() []api.ServiceID { return sorted.Ordered(m.byService) }

// Addresses lists the addresses of all attachments in order.
func (m *Machine) Addresses() []netip.Addr {
	return sorted.Addrs(m.byAddress)
}

// All lists the attachments in the order of their keys as text.
func (m *Machine) All() (out []Attachment) {
	byName := make(map[string]*Attachment, len(m.byKey))
	for k, a := range m.byKey {
		byName[k.String()] = a
	}
	for _, name := range sorted.Ordered(byName) {
		out = append(out, *byName[name])
	}
	return out
}

// Free returns how many addresses Attach can allocate without shortening a quarantine.
func (m *Machine) Free(now time.Time) int {
	if m.pool == nil {
		return 0
	}
	return m.pool.Free(now)
}

func value(a *Attachment) (Attachment, bool) {
	if a == nil {
		return Attachment{}, false
	}
	return *a, true
}
