package revoke_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/revoke"
	"github.com/treeline-edge/treeline/internal/wire"
)

type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func newLog() (*clock, *revoke.Log) {
	c := &clock{time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	return c, revoke.NewLog(c.Now)
}

func wants(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestTokensOfOneUserOrPersonalTokenAreRefused(t *testing.T) {
	c, log := newLog()
	var list revoke.List
	wants(t, "before the root was heard", list.Check("acme/alice", "", log.Mark()), api.ErrUnavailable)
	list.Apply(c.now, log.Since(0))
	alice, robot, bob := log.Mark(), log.Mark(), log.Mark()
	wants(t, "fresh", list.Check("acme/alice", "", alice), nil)
	told := 0
	log.Subscribe(func() { told++ })
	log.User("acme/alice")
	log.PAT("acme/robot", "p1")
	list.Apply(c.now, log.Since(0))
	wants(t, "user revoked", list.Check("acme/alice", "", alice), api.ErrUnauthenticated)
	wants(t, "personal token revoked", list.Check("acme/robot", "p1", robot), api.ErrUnauthenticated)
	wants(t, "another's", list.Check("acme/bob", "p2", bob), nil)
	wants(t, "delegated afterwards", list.Check("acme/alice", "", log.Mark()), nil)
	if told != 2 {
		t.Errorf("subscriber called %d times, want 2", told)
	}
}

func TestOnlyNewRevocationsAreSentAgain(t *testing.T) {
	_, log := newLog()
	log.User("a")
	first := log.Since(0)
	log.User("b")
	next := log.Since(first.Mark)
	if len(first.Entries) != 1 || len(next.Entries) != 1 || next.Entries[0].Of == first.Entries[0].Of {
		t.Errorf("first %+v, then %+v", first, next)
	}
}

// A restarted root has lost its revocations: all tokens that it delegated before are refused.
func TestTokensOfAnEarlierRootAreRefused(t *testing.T) {
	c, log := newLog()
	var list revoke.List
	list.Apply(c.now, log.Since(0))
	old := log.Mark()
	c.now = c.now.Add(time.Second)
	list.Apply(c.now, revoke.NewLog(c.Now).Since(0))
	wants(t, "of before the restart", list.Check("a", "", old), api.ErrUnauthenticated)
}

func TestBothSidesAreBoundedAndFailClosed(t *testing.T) {
	c, log := newLog()
	var list revoke.List
	token := log.Mark()
	for i := range 3 * revoke.MaxEntries {
		log.User(fmt.Sprintf("t%d/u%d", i%100, i))
	}
	all := log.Since(0)
	if len(all.Entries) > revoke.MaxEntries {
		t.Errorf("%d entries, want at most %d", len(all.Entries), revoke.MaxEntries)
	}
	list.Apply(c.now, all)
	wants(t, "a user whose revocation was dropped", list.Check("t0/u0", "", token), api.ErrUnauthenticated)
	// A list that receives more than MaxEntries refuses all tokens up to those marks.
	var flooded revoke.List
	for i := range 3 * revoke.MaxEntries {
		flooded.Apply(c.now, wire.Revocations{Entries: []wire.Revocation{{Of: fmt.Sprint("u", i), Mark: token + 1 + int64(i)}}})
	}
	wants(t, "flooded", flooded.Check("u0", "", token), api.ErrUnauthenticated)
}

func TestRevocationsAreForgottenWhenNoTokenIsLeft(t *testing.T) {
	c, log := newLog()
	log.User("a")
	c.now = c.now.Add(revoke.Keep + time.Second)
	before := log.Mark()
	log.User("b")
	if all := log.Since(0); len(all.Entries) != 1 || all.Entries[0].Mark <= before {
		t.Errorf("%+v", all)
	}
}

// A tenant with any number of revocations invalidates the tokens of its own users only, even at a
// cluster that receives each revocation.
func TestRevocationsOfOneTenantLeaveTheTokensOfOthersValid(t *testing.T) {
	c, log := newLog()
	var list revoke.List
	list.Apply(c.now, log.Since(0))
	token, sent := log.Mark(), int64(0)
	for i := range 3 * revoke.MaxEntries {
		if user := fmt.Sprintf("loud/lab/u%d", i); i%2 == 0 {
			log.User(user)
		} else {
			log.PAT(user, fmt.Sprint("p", i))
		}
		r := log.Since(sent)
		sent = r.Mark
		list.Apply(c.now, r)
	}
	wants(t, "a user of another tenant", list.Check("quiet/ann", "p", token), nil)
	wants(t, "a user of a tenant with a longer name", list.Check("loudest/ann", "", token), nil)
	wants(t, "a user of the installation", list.Check("admin", "", token), nil)
	wants(t, "a user that the tenant revoked first", list.Check("loud/lab/u0", "", token), api.ErrUnauthenticated)
	wants(t, "another user of the tenant", list.Check("loud/x", "", token), api.ErrUnauthenticated)
	wants(t, "another user of the tenant, afterwards", list.Check("loud/x", "", log.Mark()), nil)
	if n := len(log.Since(0).Entries); n != 1 {
		t.Errorf("the log has %d entries of one tenant, want one for all its users", n)
	}
}

// Revocations do not reveal the names of users to clusters, which belong to other operators.
func TestRevocationsNameNobody(t *testing.T) {
	_, log := newLog()
	log.User("acme/alice")
	log.PAT("acme/robot", "p1")
	text, err := json.Marshal(log.Since(0))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"acme", "alice", "robot", "p1"} {
		if strings.Contains(string(text), name) {
			t.Errorf("%s is in %s", name, text)
		}
	}
}
