// Package revoke tells clusters which tokens of the root no longer count before
// they expire: the root keeps a Log, each cluster a List.
//
// Every token that the root delegates carries a mark, a number that only grows.
// A revocation carries one too, and refuses the tokens of its user (or of its
// personal token) with a lower mark. Both sides forget a revocation after Keep,
// when no token that it concerns can be alive, so the size is bounded by the rate
// of revocations; beyond MaxEntries all tokens up to a floor are refused, and
// their holders exchange theirs again.
//
//	log := revoke.NewLog(time.Now)
//	claims.Mark = log.Mark()          // when a token is delegated
//	log.User("acme/alice")            // when the user is deleted, say
//	list.Apply(log.Since(0))          // at the cluster, over its stream from the root
//	err := list.Check("acme/alice", "", claims.Mark)
package revoke

import (
	"fmt"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Bounds of both sides.
const (
	Keep       = 15 * time.Minute // longer than any delegated token lives
	MaxEntries = 4096
)

// Log is the root's side. It is safe for concurrent use. It is in memory only:
// its floor is the root's start, so that a revocation that a cluster missed
// because the root restarted counts there, too.
type Log struct {
	now func() time.Time

	mu      sync.Mutex // guards the fields below
	floor   int64
	last    int64
	entries []api.Revocation // in the order of their marks
	told    []func()
}

// NewLog returns an empty log. Its floor is now.
func NewLog(now func() time.Time) *Log {
	l := &Log{now: now}
	l.floor = l.Mark()
	return l
}

// Mark returns a number that is higher than any before.
func (l *Log) Mark() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mark()
}

func (l *Log) mark() int64 {
	l.last = max(l.last+1, l.now().UnixMicro())
	return l.last
}

// Raise has all later marks be above the given one, which an earlier process
// made: the clock may have been set back meanwhile.
func (l *Log) Raise(mark int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = max(l.last, mark)
}

// Subscribe has fn called after every revocation, on the goroutine that makes
// it. It is called before the log is used.
func (l *Log) Subscribe(fn func()) { l.told = append(l.told, fn) }

// User refuses the tokens that were delegated to the user until now.
func (l *Log) User(id string) { l.add(api.Revocation{User: id}) }

// PAT refuses the tokens that were delegated to the personal token until now.
func (l *Log) PAT(id string) { l.add(api.Revocation{PAT: id}) }

func (l *Log) add(r api.Revocation) {
	l.mu.Lock()
	r.Mark = l.mark()
	old := l.now().Add(-Keep).UnixMicro()
	drop := 0
	for drop < len(l.entries) && l.entries[drop].Mark < old {
		drop++
	}
	if len(l.entries)-drop >= MaxEntries {
		drop += MaxEntries / 2
		l.floor = l.entries[drop-1].Mark
	}
	l.entries = append(l.entries[drop:], r)
	l.mu.Unlock()
	for _, fn := range l.told {
		fn()
	}
}

// Since returns the revocations with a mark above the given one; 0: all.
func (l *Log) Since(mark int64) api.Revocations {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := api.Revocations{Floor: l.floor, Mark: l.last}
	for _, e := range l.entries {
		if e.Mark > mark {
			out.Entries = append(out.Entries, e)
		}
	}
	return out
}

// List is a cluster's side. The zero value refuses every token until the root
// has said once what is revoked. It is safe for concurrent use.
type List struct {
	mu    sync.Mutex // guards the fields below
	heard bool
	floor int64
	users map[string]entry
	pats  map[string]entry
}

type entry struct {
	mark int64
	at   time.Time // when it came
}

// Apply takes what the root says at time now.
func (l *List) Apply(now time.Time, r api.Revocations) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == nil {
		l.users, l.pats = map[string]entry{}, map[string]entry{}
	}
	l.heard = true
	l.floor = max(l.floor, r.Floor)
	for _, m := range []map[string]entry{l.users, l.pats} {
		for id, e := range m {
			if now.Sub(e.at) > Keep {
				delete(m, id)
			}
		}
	}
	for _, e := range r.Entries {
		if len(l.users)+len(l.pats) >= MaxEntries {
			l.floor = max(l.floor, l.highest())
			clear(l.users)
			clear(l.pats)
		}
		switch {
		case e.User != "":
			l.users[e.User] = entry{max(e.Mark, l.users[e.User].mark), now}
		case e.PAT != "":
			l.pats[e.PAT] = entry{max(e.Mark, l.pats[e.PAT].mark), now}
		}
	}
}

func (l *List) highest() (mark int64) {
	for _, m := range []map[string]entry{l.users, l.pats} {
		for _, e := range m {
			mark = max(mark, e.mark)
		}
	}
	return mark
}

// Check reports whether a token with the mark still counts: nil,
// ErrUnauthenticated where it is revoked, or ErrUnavailable while the root has
// not said since this start what is.
func (l *List) Check(user, pat string, mark int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.heard:
		return fmt.Errorf("token of %s: the cluster has not heard from the root since its start which tokens are revoked; use the operator's token or try again: %w", user, api.ErrUnavailable)
	case mark <= l.floor, mark <= l.users[user].mark, pat != "" && mark <= l.pats[pat].mark:
		return fmt.Errorf("token of %s is revoked; exchange a new one at the root: %w", user, api.ErrUnauthenticated)
	}
	return nil
}
