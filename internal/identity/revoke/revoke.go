// Package revoke makes tokens of the root invalid at clusters before they expire: the
// root keeps a Log, each cluster a List.
//
// Every token that the root delegates has a mark, a number that only grows. A revocation has a
// mark too, and invalidates the tokens of one holder with that mark or a lower one. A holder is a
// user, a personal token, or all users of a topmost tenant. Clusters receive digests of holders,
// so that they do not learn the names of users. Both sides drop a revocation after Keep, when all
// tokens that it concerns have expired.
//
// The size is bounded. The revocations of a tenant with more than maxOfTenant are replaced by one
// for all its users. Beyond MaxEntries in total, all tokens with a mark up to a floor become
// invalid. Clients whose tokens become invalid this way exchange new ones at the root.
//
//	log := revoke.NewLog(time.Now)
//	claims.Mark = log.Mark()          // when a token is delegated
//	log.User("acme/alice")            // when the user is deleted, for example
//	list.Apply(now, log.Since(0))     // at the cluster, over its stream from the root
//	err := list.Check("acme/alice", "", claims.Mark)
package revoke

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	Keep       = 15 * time.Minute // more than the lifetime of any delegated token
	MaxEntries = 4096

	maxOfTenant = 64
)

var _ = fairshare.Declare(fairshare.Bound{
	Resource: "revocations of users and personal tokens, kept for 15 min", Total: MaxEntries, Share: []int{maxOfTenant}, Per: "tenant",
	Beyond: "all delegated tokens of the tenant's users become invalid; beyond the total, those of everybody",
	Attack: "TestRevocationsOfOneTenantLeaveTheTokensOfOthersValid",
})

// digest returns the name of a holder that clusters receive.
func digest(kind, id string) string {
	sum := sha256.Sum256([]byte(kind + "\x00" + id))
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}

// topOf returns the topmost tenant of a user, "" for a user of the installation.
func topOf(user string) string {
	top, _, below := strings.Cut(user, "/")
	if !below {
		return ""
	}
	return top
}

// Log is the root's side. It is safe for concurrent use. It is in memory only. Its floor is the
// root's start, which invalidates all tokens from before, because their revocations are lost.
type Log struct {
	now func() time.Time

	mu      sync.Mutex // guards the fields below
	floor   int64
	last    int64
	entries []logged // in the order of their marks
	told    []func()
}

// logged is a revocation and the topmost tenant that it counts against.
type logged struct {
	wire.Revocation
	top string
}

func NewLog(now func() time.Time) *Log {
	l := &Log{now: now}
	l.floor = l.Mark()
	return l
}

// Mark returns a new mark, higher than all earlier ones.
func (l *Log) Mark() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mark()
}

func (l *Log) mark() int64 {
	l.last = max(l.last+1, l.now().UnixMicro())
	return l.last
}

// Raise makes all later marks higher than the given one of an earlier process, because the clock
// may have been set back since.
func (l *Log) Raise(mark int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = max(l.last, mark)
}

// Subscribe registers fn, which is called after every revocation, on the revoking goroutine.
// Subscribe is called before the log is used.
func (l *Log) Subscribe(fn func()) { l.told = append(l.told, fn) }

// User invalidates the tokens that were delegated to the user until now.
func (l *Log) User(id string) { l.add(digest("user", id), topOf(id)) }

// PAT invalidates the tokens that were delegated to a personal token of the user until now.
func (l *Log) PAT(user, id string) { l.add(digest("pat", id), topOf(user)) }

func (l *Log) add(of, top string) {
	l.mu.Lock()
	old := l.now().Add(-Keep).UnixMicro()
	own, whole := 0, digest("tenant", top)
	l.entries = slices.DeleteFunc(l.entries, func(e logged) bool {
		if e.Mark < old || e.Of == of {
			return true
		}
		if e.Of == whole {
			own = maxOfTenant // the tenant's revocations are merged already
		} else if e.top == top {
			own++
		}
		return false
	})
	if own >= maxOfTenant {
		of = whole
		l.entries = slices.DeleteFunc(l.entries, func(e logged) bool { return e.top == top })
	}
	if len(l.entries) >= MaxEntries {
		l.floor = l.entries[MaxEntries/2-1].Mark
		l.entries = slices.Delete(l.entries, 0, MaxEntries/2)
	}
	l.entries = append(l.entries, logged{wire.Revocation{Of: of, Mark: l.mark()}, top})
	l.mu.Unlock()
	for _, fn := range l.told {
		fn()
	}
}

// Since returns the revocations with a mark above the given one; 0: all.
func (l *Log) Since(mark int64) wire.Revocations {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := wire.Revocations{Floor: l.floor, Mark: l.last}
	for _, e := range l.entries {
		if e.Mark > mark {
			out.Entries = append(out.Entries, e.Revocation)
		}
	}
	return out
}

// List is a cluster's side. It refuses every token until Apply was called once. It is safe for
// concurrent use.
type List struct {
	mu      sync.Mutex // guards the fields below
	applied bool
	floor   int64
	entries map[string]entry // by holder
}

type entry struct {
	mark int64
	at   time.Time // when it was received
}

// Apply adds the revocations that were received from the root at time now.
func (l *List) Apply(now time.Time, r wire.Revocations) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries == nil {
		l.entries = map[string]entry{}
	}
	l.applied = true
	l.floor = max(l.floor, r.Floor)
	for of, e := range l.entries {
		if now.Sub(e.at) > Keep {
			delete(l.entries, of)
		}
	}
	for _, e := range r.Entries {
		if len(l.entries) >= MaxEntries {
			for _, old := range l.entries {
				l.floor = max(l.floor, old.mark)
			}
			clear(l.entries)
		}
		l.entries[e.Of] = entry{max(e.Mark, l.entries[e.Of].mark), now}
	}
}

// Check returns nil if a token of the user with the mark is still valid, ErrUnauthenticated if it
// is revoked, and ErrUnavailable before the first Apply. pat is the id of the personal token with
// which it was requested, or "".
func (l *List) Check(user, pat string, mark int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	revoked := mark <= l.floor || mark <= l.entries[digest("tenant", topOf(user))].mark || mark <= l.entries[digest("user", user)].mark
	switch {
	case !l.applied:
		return fmt.Errorf("token of %s: the cluster has not received the revocations from the root since its start; use the operator's token or try again: %w", user, api.ErrUnavailable)
	case revoked, pat != "" && mark <= l.entries[digest("pat", pat)].mark:
		return fmt.Errorf("token of %s is revoked; exchange a new one at the root: %w", user, api.ErrUnauthenticated)
	}
	return nil
}
