package nft

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// All flows of a host share one table of connection tracking. No instance shall fill
// it alone: one that has its share begins no flow until some have ended. Those that it has go
// on, and so does everybody else.
//
// With a flow that comes, the kernel looks each that is on its list up again (nf_conncount): so
// only one in some is on the list, drawn at random, and there is room for the share's part of
// them. An instance whose list is full is noted; from then on what would be a new flow of its is
// dropped, but for a few a second, which are held against the list, until there is room
// again. With a thousand on a list the bound is off by a few hundredths. TCP flows that have
// closed are not counted: the kernel itself drops those early when the table gets full. A new
// table of ours begins to count anew.
const (
	sharers   = 4       // that it takes to fill the table
	sampled   = 64      // of so many new flows one is on the list
	asks      = 4       // flows a second of a full instance that are held against its list
	instances = 1 << 16 // that a list is kept for
)

// share is how many flows an instance may have at a time.
func (h *host) share() uint32 {
	most := 65536 // until connection tracking is there to say
	if b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n > 0 {
			most = n
		}
	}
	return uint32(max(most/sharers, sampled))
}

// share drops what begins a flow of an instance that has its share.
func (t table) share(f family) {
	const remove = 2 // NFT_DYNSET_OP_DELETE
	share, drawn, wait := "share"+f.suffix, "drawn"+f.suffix, "wait"+f.suffix
	key := f.key(f.source, r(0))
	t.rule(share, exprs{&expr.Numgen{Register: r(12), Modulus: sampled, Type: unix.NFT_NG_RANDOM}}, is(r(12), native(0)), goTo(drawn))
	t.rule(share, key, in(t.full, r(0)), goTo(wait))

	often := &expr.Limit{Type: expr.LimitTypePkts, Rate: asks, Unit: expr.LimitTimeSecond, Burst: 1, Over: true}
	t.rule(wait, key, note(t.asking, r(0), unix.NFT_DYNSET_OP_UPDATE, time.Minute, often), drop())
	t.rule(wait, goTo(drawn))

	more := &expr.Connlimit{Count: t.most / sampled, Flags: expr.NFT_CONNLIMIT_F_INV}
	t.rule(drawn, key, in(t.local, r(0)), note(t.sample, r(0), unix.NFT_DYNSET_OP_ADD, 0, more), note(t.full, r(0), unix.NFT_DYNSET_OP_ADD, 0), drop())
	t.rule(drawn, key, in(t.full, r(0)), note(t.full, r(0), remove, 0))
}

// note changes the key's element, and goes on if its expression does.
func note(s *set, key uint32, op int, life time.Duration, each ...expr.Any) exprs {
	return exprs{&expr.Dynset{SrcRegKey: key, SetName: s.Name, Operation: uint32(op), Timeout: life, Exprs: each}}
}
