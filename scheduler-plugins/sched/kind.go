package sched

import (
	"maps"
	"slices"
	"strings"
)

// kind has the properties of a node's room that rarely change.
type kind struct {
	runtimes, areas, addons   []string
	arch                      string
	privileged, network, full bool
}

func kindOf(r *Room) kind {
	return kind{
		runtimes: slices.Clone(r.Runtimes), areas: slices.Clone(r.Areas), addons: slices.Clone(r.Addons),
		arch: r.Arch, privileged: r.Privileged, network: r.Network, full: r.Full,
	}
}

// is reports whether the room is of the kind.
func (k *kind) is(r *Room) bool {
	return k.arch == r.Arch && k.privileged == r.Privileged && k.network == r.Network && k.full == r.Full &&
		slices.Equal(k.runtimes, r.Runtimes) && slices.Equal(k.areas, r.Areas) && slices.Equal(k.addons, r.Addons)
}

// kindKey returns a key that is equal for rooms of the same kind only.
func kindKey(r *Room) string {
	var k strings.Builder
	for _, list := range [][]string{{r.Arch}, r.Runtimes, r.Areas, r.Addons} {
		for _, s := range list {
			k.WriteString(s)
			k.WriteByte(0)
		}
		k.WriteByte(1)
	}
	if r.Privileged {
		k.WriteByte('p')
	}
	if r.Network {
		k.WriteByte('n')
	}
	if r.Full {
		k.WriteByte('f')
	}
	return k.String()
}

func labelKey(labels map[string]string) string {
	var k strings.Builder
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		k.WriteString(key)
		k.WriteByte(0)
		k.WriteString(labels[key])
		k.WriteByte(0)
	}
	return k.String()
}

// verdict is the result of a check of a kind.
type verdict uint8

const (
	unknown verdict = iota
	yes
	no
)

// judge checks the rooms of every kind against the request.
func (q *query) judge(kinds *interned[kind]) {
	for i := range kinds.all {
		s := &kinds.all[i]
		if s.users == 0 {
			continue
		}
		k := &s.value
		room := Room{Runtimes: k.runtimes, Areas: k.areas, Addons: k.addons, Arch: k.arch, Privileged: k.privileged, Network: k.network, Full: k.full}
		s.verdict = no
		if q.kindStage(Nodes, &room) == fit {
			s.verdict = yes
		}
	}
}

// forget discards the verdicts of all label sets.
func (q *query) forget(sets *interned[map[string]string]) {
	for i := range sets.all {
		sets.all[i].verdict = unknown
	}
}

// judgeLabels reports whether a node with these labels matches the selectors and is in no full
// domain by label.
func (q *query) judgeLabels(labels map[string]string) bool {
	if mismatch(q.Labels, labels) >= 0 {
		return false
	}
	if len(q.Domains) > 0 {
		if q.full == nil {
			q.fill()
		}
		for _, by := range q.by {
			name := labels[by]
			if by == "node" || by == "cluster" || name == "" {
				continue
			}
			if q.full[domain{by, name, false}] != nil || q.full[domain{by, name, true}] != nil {
				return false
			}
		}
	}
	return true
}
