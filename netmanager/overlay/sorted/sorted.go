// Package sorted lists the keys of maps in order, so that a core's output is the same in every run.
//
//	for _, a := range sorted.Addrs(byAddress) { … }
package sorted

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// Keys lists the keys of m in the order of compare.
func Keys[M ~map[K]V, K comparable, V any](m M, compare func(a, b K) int) []K {
	if len(m) == 0 {
		return nil
	}
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	if len(out) > 1 {
		slices.SortFunc(out, compare)
	}
	return out
}

// Ordered lists keys in their natural order.
func Ordered[M ~map[K]V, K cmp.Ordered, V any](m M) []K { return Keys(m, cmp.Compare[K]) }

// Addrs lists addresses in order.
func Addrs[M ~map[netip.Addr]V, V any](m M) []netip.Addr { return Keys(m, netip.Addr.Compare) }

// Peers lists peers in order.
func Peers[M ~map[api.PeerKey]V, V any](m M) []api.PeerKey {
	return Keys(m, func(a, b api.PeerKey) int { return bytes.Compare(a[:], b[:]) })
}
