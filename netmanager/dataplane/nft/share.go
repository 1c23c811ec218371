package nft

import (
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/netmanager/dataplane"
)

// All flows of a host share one table of connection tracking. An instance at its share of it cannot
// open flows until some have ended. Existing flows, and those of other instances, continue.
//
// For each new flow the kernel looks up all flows on the instance's list (nf_conncount).
// Therefore only a random sample of flows is on the list, and its limit is scaled accordingly. An
// instance whose list is full is recorded. Then its new flows are dropped, except a few a second,
// which are tried against the list until it has space. With a list of a thousand flows the error of
// the limit is a few percent. Closed TCP flows are not counted, because the kernel drops those first
// when the table gets full. A replaced table starts with empty lists.
const (
	sharers          = 4       // how many instances it takes to fill the table
	sampled          = 64      // one of so many new flows is on the list
	retriesPerSecond = 4       // flows a second of a full instance that are tried against its list
	instances        = 1 << 16 // with a list
)

// flowLimit returns how many flows an instance may have at a time.
func (h *host) flowLimit() uint32 {
	return uint32(max(dataplane.ConntrackSetting("nf_conntrack_max", 65536)/sharers, sampled))
}

// limitFlows drops new flows of an instance at its share.
func (t table) limitFlows(f family) {
	const remove = 2 // NFT_DYNSET_OP_DELETE
	limit, onList, full := "flow-limit"+f.suffix, "flow-limit-sampled"+f.suffix, "flow-limit-full"+f.suffix
	key := f.key(f.source, r(0))
	t.rule(limit, exprs{&expr.Numgen{Register: r(12), Modulus: sampled, Type: unix.NFT_NG_RANDOM}}, is(r(12), native(0)), goTo(onList))
	t.rule(limit, key, in(t.atLimit, r(0)), goTo(full))

	often := &expr.Limit{Type: expr.LimitTypePkts, Rate: retriesPerSecond, Unit: expr.LimitTimeSecond, Burst: 1, Over: true}
	t.rule(full, key, updateSet(t.limitRate, r(0), unix.NFT_DYNSET_OP_UPDATE, time.Minute, often), drop())
	t.rule(full, goTo(onList))

	more := &expr.Connlimit{Count: t.maxFlows / sampled, Flags: expr.NFT_CONNLIMIT_F_INV}
	t.rule(onList, key, in(t.local, r(0)), updateSet(t.sampled, r(0), unix.NFT_DYNSET_OP_ADD, 0, more), updateSet(t.atLimit, r(0), unix.NFT_DYNSET_OP_ADD, 0), drop())
	t.rule(onList, key, in(t.atLimit, r(0)), updateSet(t.atLimit, r(0), remove, 0))
}

// updateSet changes the element of the key, and matches if its expression does.
func updateSet(s *set, key uint32, op int, life time.Duration, each ...expr.Any) exprs {
	return exprs{&expr.Dynset{SrcRegKey: key, SetName: s.Name, Operation: uint32(op), Timeout: life, Exprs: each}}
}
