package subscriptions

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

// Fold returns the key with its name in lower case.
func Fold(k Key) Key {
	k.Service = api.ServiceID(strings.ToLower(string(k.Service)))
	return k
}

// Spelling returns the key under which a service subscribes to a name, spelt in any case. Some resolvers
// change the case in each query, so one key in lower case serves all. The exact key is used only if the
// cluster refused the lower-case key: then several services have names that differ only in case.
func (m *Machine) Spelling(k Key) Key {
	fold := Fold(k)
	switch s := m.all[fold]; {
	case m.all[k] != nil:
		return k
	case s == nil || s.refusal == nil:
		return fold
	}
	n := 0
	for o := range m.byName[string(fold.Service)] {
		if o.For == k.For && o != fold {
			n++
		}
	}
	if n >= maxSpellings {
		return fold
	}
	return k
}

// Spellings lists the subscriber's keys for other spellings of k, which has its name in lower case. Their
// outcome depends on whether k is refused.
func (m *Machine) Spellings(k Key) []Key {
	if k.Service == "" || k != Fold(k) {
		return nil
	}
	return slices.DeleteFunc(m.inOrder(m.byName[string(k.Service)]), func(o Key) bool { return o.For != k.For || o == k })
}

// To lists the subscriptions to a service, by its name in any case or by one of addresses.
func (m *Machine) To(id api.ServiceID, addresses []netip.Addr) []Key {
	all := maps.Clone(m.byName[strings.ToLower(string(id))])
	for _, a := range addresses {
		for k := range m.byAddress[a] {
			if all == nil {
				all = map[Key]struct{}{}
			}
			all[k] = struct{}{}
		}
	}
	return m.inOrder(all)
}

// At lists the subscriptions to an address.
func (m *Machine) At(a netip.Addr) []Key { return m.inOrder(m.byAddress[a]) }

// Subscribed reports whether there is a subscription to an address.
func (m *Machine) Subscribed(a netip.Addr) bool { return len(m.byAddress[a]) > 0 }

// Of lists the subscriptions of a service.
func (m *Machine) Of(id api.ServiceID) []Key {
	if a := m.by[id]; a != nil {
		return m.inOrder(a.all)
	}
	return nil
}

// OpenOf lists the open subscriptions of a service.
func (m *Machine) OpenOf(id api.ServiceID) []Key {
	if a := m.by[id]; a != nil {
		return m.inOrder(a.open)
	}
	return nil
}

// Subscribers lists, in order, the services with subscriptions.
func (m *Machine) Subscribers() []api.ServiceID { return sorted.Ordered(m.by) }

// inOrder lists keys, the oldest subscription first.
func (m *Machine) inOrder(set map[Key]struct{}) []Key {
	return sorted.Keys(set, func(a, b Key) int { return cmp.Compare(m.all[a].order, m.all[b].order) })
}

func (m *Machine) put(s *subscription) {
	m.created++
	s.order = m.created
	m.all[s.Key] = s
	a := m.by[s.For]
	if a == nil {
		a = &subscriber{map[Key]struct{}{}, map[Key]struct{}{}}
		m.by[s.For] = a
	}
	a.all[s.Key] = struct{}{}
	if s.Service != "" {
		addTo(m.byName, strings.ToLower(string(s.Service)), s.Key)
	} else {
		addTo(m.byAddress, s.Address, s.Key)
	}
}

func docKey(k Key) string {
	a := ""
	if k.Address.IsValid() {
		a = k.Address.String()
	}
	return a + " " + string(k.Service) + " " + string(k.For)
}

func addTo[K comparable](m map[K]map[Key]struct{}, k K, v Key) {
	if m[k] == nil {
		m[k] = map[Key]struct{}{}
	}
	m[k][v] = struct{}{}
}

func removeFrom[K comparable](m map[K]map[Key]struct{}, k K, v Key) {
	delete(m[k], v)
	if len(m[k]) == 0 {
		delete(m, k)
	}
}
