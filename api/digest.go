package api

import (
	"hash/fnv"
	"strconv"
)

// Digest is a fingerprint of a set: the XOR of its members' hashes. It does not depend on their
// order. Adding and removing take constant time. It detects loss, not manipulation.
type Digest uint64

// Toggle adds a member to the set's digest, or removes it.
func (d Digest) Toggle(member Digest) Digest { return d ^ member }

// DigestOf returns the digest of one member, identified by the parts in this order.
func DigestOf(parts ...string) Digest {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = h.Write([]byte(p))
		_, _ = h.Write([]byte{0})
	}
	// FNV mixes the low bits of short inputs badly; these steps of MurmurHash3 spread them.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return Digest(x)
}

func itoa(n int) string { return strconv.Itoa(n) }

func utoa(n uint64) string { return strconv.FormatUint(n, 10) }
