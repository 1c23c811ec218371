package sched

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// kindOf returns the properties of a node's slot that rarely change. Slots with equal
// properties are of the same kind.
func kindOf(r *Slot) Slot {
	return Slot{
		Runtimes: slices.Clone(r.Runtimes), Areas: slices.Clone(r.Areas), Addons: slices.Clone(r.Addons), Features: slices.Clone(r.Features),
		Arch: r.Arch, Privileged: r.Privileged, Network: r.Network, Full: r.Full,
	}
}

func sameKind(k, r *Slot) bool {
	return k.Arch == r.Arch && k.Privileged == r.Privileged && k.Network == r.Network && k.Full == r.Full &&
		slices.Equal(k.Runtimes, r.Runtimes) && slices.Equal(k.Areas, r.Areas) && slices.Equal(k.Addons, r.Addons) &&
		slices.Equal(k.Features, r.Features)
}

// kindKey returns a key that is equal for slots of the same kind only.
func kindKey(r *Slot) string {
	var k strings.Builder
	for _, list := range [][]string{{r.Arch}, r.Runtimes, r.Areas, r.Addons, r.Features} {
		for _, s := range list {
			k.WriteString(s)
			k.WriteByte(0)
		}
		k.WriteByte(1)
	}
	fmt.Fprint(&k, r.Privileged, r.Network, r.Full)
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

// verdict is the result of a check of a kind or a label set.
type verdict uint8

const (
	unknown verdict = iota
	yes
	no
)

// checkKinds checks the slots of every kind against the request.
func (q *query) checkKinds(kinds *interned[Slot]) {
	for i := range kinds.all {
		s := &kinds.all[i]
		if s.verdict = no; s.users > 0 && q.kindStage(Nodes, &s.value) == fit {
			s.verdict = yes
		}
	}
}

// resetLabelVerdicts resets the verdicts of all label sets.
func (q *query) resetLabelVerdicts(sets *interned[map[string]string]) {
	for i := range sets.all {
		sets.all[i].verdict = unknown
	}
}

// checkLabels reports whether a node with these labels matches the selectors and is not in a
// full label domain.
func (q *query) checkLabels(labels map[string]string) bool {
	if api.Mismatch(q.Labels, labels) >= 0 {
		return false
	}
	if len(q.Domains) > 0 {
		if q.full == nil {
			q.indexDomains()
		}
		for _, by := range q.by {
			name := labels[by]
			if by != "node" && by != "cluster" && name != "" && (q.full[domain{by, name, false}] != nil || q.full[domain{by, name, true}] != nil) {
				return false
			}
		}
	}
	return true
}
