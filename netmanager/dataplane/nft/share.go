package nft

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
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
	sharers   = 4       // how many instances it takes to fill the table
	sampled   = 64      // one of so many new flows is on the list
	asks      = 4       // flows a second of a full instance that are tried against its list
	instances = 1 << 16 // with a list
)

// share returns how many flows an instance may have at a time.
func (h *host) share() uint32 {
	most := 65536 // default until connection tracking is loaded
	if b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n > 0 {
			most = n
		}
	}
	return uint32(max(most/sharers, sampled))
}

// share drops new flows of an instance at its share.
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

// note changes the element of the key, and matches if its expression does.
func note(s *set, key uint32, op int, life time.Duration, each ...expr.Any) exprs {
	return exprs{&expr.Dynset{SrcRegKey: key, SetName: s.Name, Operation: uint32(op), Timeout: life, Exprs: each}}
}
