package shared_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/shared"
	"github.com/treeline-edge/treeline/internal/store/shared/sharedtest"
)

// mirror is a copy. check is called with each time as of which it is current.
type mirror struct {
	docs   map[string]store.Doc
	asOf   time.Time
	adopts []int // documents of each Adopt
	resets int
	fails  error
	check  func(asOf time.Time)
}

func (m *mirror) Reset(docs []store.Doc) error {
	if !m.asOf.IsZero() {
		panic("the documents are replaced while the copy counts as current")
	}
	m.docs = map[string]store.Doc{}
	m.resets++
	for _, d := range docs {
		m.docs[d.Key] = d
	}
	return m.fails
}

func (m *mirror) Adopt(docs []store.Doc) error {
	m.adopts = append(m.adopts, len(docs))
	for _, d := range docs {
		if m.docs[d.Key] = d; d.Data == nil {
			delete(m.docs, d.Key)
		}
	}
	return m.fails
}

func (m *mirror) Current(asOf time.Time) {
	if m.asOf = asOf; m.check != nil && !asOf.IsZero() {
		m.check(asOf)
	}
}

func (m *mirror) String() string {
	out := map[string]string{}
	for k, d := range m.docs {
		out[k] = string(d.Data)
	}
	return fmt.Sprint(out)
}

// poll polls once, in a bubble in which reads take no time, and reports whether the copy is current as of that.
func poll(t *testing.T, f *shared.Follower, m *mirror) bool {
	t.Helper()
	time.Sleep(time.Millisecond) // later than the poll before
	began := time.Now()
	if err := f.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return !m.asOf.Before(began)
}

func TestAFollowerHasWhatIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		s, m := e.patient(t), &mirror{}
		f := e.replica("two").NewFollower(m)
		save(t, s, put("a", 1, "1"), put("b", 1, "1"))
		for i, docs := range [][]store.Doc{
			nil, nil, {put("a", 2, "2")}, {put("c", 1, "3"), put("c", 2, "4")}, {{Kind: "app", Key: "b", Version: 2}}, {put("b", 1, "again")},
		} {
			if docs != nil {
				save(t, s, docs...)
			}
			if current := poll(t, f, m); !current || m.String() != fmt.Sprint(content(t, s)) || m.resets != 1 {
				t.Errorf("after save %d: current %t after %d resets, %s, want %v", i, current, m.resets, m, content(t, s))
			}
		}
	})
}

// Takeovers are never deleted, so that a trimmed log can look as if it ended with one.
func TestATakeoverAtTheEndProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		m := &mirror{}
		save(t, e.active(t, "one"), put("a", 1, "1"))
		f := e.replica("three").NewFollower(m)
		if !poll(t, f, m) {
			t.Fatal("the copy is not current")
		}
		two := e.active(t, "two")
		if poll(t, f, m) {
			t.Error("the copy is current after a takeover, before a save")
		}
		save(t, two, put("a", 2, "2"))
		if !poll(t, f, m) || m.String() != "map[a:2]" {
			t.Errorf("the copy has %s, want the save of the new active replica", m)
		}
	})
}

// trimming returns an active store that trims its log with nearly each save.
func trimming(t *testing.T, e engines) *shared.Store {
	t.Helper()
	s, err := e.replicaWith(shared.Options{TTL: time.Minute, Slack: 1}).Await(t.Context(), func(shared.Lease) {})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestATrimmedLogIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		s, m := trimming(t, e), &mirror{}
		f := e.replica("two").NewFollower(m)
		save(t, s, put("a", 1, "1"), put("kept", 1, "1"))
		if !poll(t, f, m) {
			t.Fatal("the copy is not current")
		}
		position := s.Position()
		for v := uint64(2); ; v++ {
			save(t, s, put("a", v, fmt.Sprint(v)))
			if all := e.log.Entries(); all[len(all)-1].Position > position+1 && all[1].Position > position+1 {
				break // the next entry of the follower was deleted
			}
		}
		m.check = func(time.Time) {
			if m.String() != fmt.Sprint(content(t, s)) {
				t.Errorf("current with %s, want %v", m, content(t, s))
			}
		}
		for range 2 { // one finds it, the other reads
			poll(t, f, m)
		}
		if m.asOf.IsZero() || m.resets != 2 {
			t.Errorf("current as of %s after %d resets, want a time after 2", m.asOf, m.resets)
		}
	})
}

// Documents that were read before their entry was trimmed are kept only if a later entry has them.
func TestALogIsTrimmedWhileItIsRead(t *testing.T) {
	for polls := range 6 { // before the log is trimmed
		synctest.Test(t, func(t *testing.T) {
			e := newEngines()
			s, err := e.replicaWith(shared.Options{Slack: 4000}).Await(t.Context(), func(shared.Lease) {})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			held := make(chan error)
			go func() { held <- s.Hold(ctx) }()
			m := &mirror{}
			f := e.replica("two").NewFollower(m)
			for i := range 150 {
				save(t, s, put(fmt.Sprint("k", i), 1, "1"))
			}
			time.Sleep(time.Second)
			for range polls {
				if err := f.Poll(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 150 {
				if i%2 == 0 {
					save(t, s, store.Doc{Kind: "app", Key: fmt.Sprint("k", i), Version: 2})
				} else {
					save(t, s, put(fmt.Sprint("k", i), 2, "2"))
				}
			}
			for i := range uint64(200) {
				save(t, s, put("last", i+1, fmt.Sprint(i)))
			}
			time.Sleep(time.Second)
			for n := 0; !poll(t, f, m); n++ {
				if n == 20 {
					t.Fatalf("after %d polls before the log was trimmed: not current after %d further ones", polls, n)
				}
			}
			if m.String() != fmt.Sprint(content(t, s)) {
				t.Errorf("after %d polls before the log was trimmed: current with %s, want %v", polls, m, content(t, s))
			}
			cancel()
			if err := <-held; err != nil {
				t.Error(err)
			}
		})
	}
}

// A replica that loses a claim stores a takeover where the log was trimmed.
func TestATakeoverInATrimmedLogIsNotFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, deleted := range []uint64{1, 2, 3} { // entries after the last one of the follower
			e := newEngines()
			s, m := e.patient(t), &mirror{}
			f := e.replica("two").NewFollower(m)
			save(t, s, put("a", 1, "1"))
			if !poll(t, f, m) {
				t.Fatal("the copy is not current")
			}
			last := s.Position()
			for v := range uint64(3) {
				save(t, s, put("a", v+2, fmt.Sprint(v+2)))
			}
			for p := range deleted + 1 {
				e.log.Remove(last + p)
			}
			if deleted == 3 { // the log goes on after that
				if taken, err := e.log.Open().Append(t.Context(), shared.Entry{Position: last + 4, Epoch: 1, Start: last + 4, Docs: []store.Doc{put("a", 5, "5")}}); taken || err != nil {
					t.Fatal(taken, err)
				}
			}
			if taken, err := e.log.Open().Append(t.Context(), shared.Entry{Position: last + 1, Epoch: last + 1, Takeover: "late"}); taken || err != nil {
				t.Fatal(taken, err)
			}
			m.check = func(time.Time) { t.Errorf("with %d entries deleted: current with %s", deleted, m) }
			for range 4 {
				_ = f.Poll(t.Context()) // it may find a gap, because this test trims without a start
			}
		}
	})
}

// A list must not have one half of a step, because its revision says that it has all.
func TestALargeSaveIsAdoptedAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		to := engines{sharedtest.NewEngine(), e.leases}
		s, m := e.patient(t), &mirror{}
		save(t, s, put("a", 1, "1"))
		large := strings.Repeat("x", 3<<20)
		save(t, s, put("l1", 1, large), put("l2", 1, large), put("l3", 1, large), put("l4", 1, large))
		save(t, s, put("a", 2, "2"))
		f := to.replica("two").NewFollower(m)
		for i, entry := range e.log.Entries() {
			if _, err := to.log.Open().Append(t.Context(), entry); err != nil {
				t.Fatal(err)
			}
			current := poll(t, f, m)
			if n := len(m.docs); n == 3 || n == 4 || current == (i == 0 || entry.More) {
				t.Errorf("after entry %d, more %t: %d documents, current %t", i+1, entry.More, n, current)
			}
		}
		if fmt.Sprint(m.adopts) != "[4 1]" {
			t.Errorf("%v documents were adopted at once, want one save each", m.adopts)
		}
	})
}

// A copy that refuses documents is never current, and starts again.
func TestACopyThatFailsIsNotCurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		s, m := e.patient(t), &mirror{}
		f := e.replica("two").NewFollower(m)
		save(t, s, put("a", 1, "1"))
		poll(t, f, m)
		save(t, s, put("a", 2, "2"))
		for m.fails = errors.New("no"); m.resets < 3; {
			if err := f.Poll(t.Context()); !errors.Is(err, m.fails) || !m.asOf.IsZero() {
				t.Fatalf("got %v, current as of %s, want the error", err, m.asOf)
			}
		}
		if m.fails = nil; !poll(t, f, m) || m.String() != "map[a:2]" {
			t.Errorf("the copy has %s", m)
		}
	})
}

// counted counts the calls to a log, which take a time each.
type counted struct {
	shared.Log
	takes time.Duration
	large bool       // the log answers no query for several entries
	mu    sync.Mutex // guards n and asked
	n     int
	asked []int // entries of each query for several
}

func (c *counted) call() {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	time.Sleep(c.takes)
}

func (c *counted) At(ctx context.Context, p uint64) (shared.Entry, bool, error) {
	c.call()
	return c.Log.At(ctx, p)
}

func (c *counted) Next(ctx context.Context, from uint64, n int) ([]shared.Entry, error) {
	c.call()
	c.mu.Lock()
	c.asked = append(c.asked, n)
	c.mu.Unlock()
	if c.large && n > 1 {
		return nil, errors.New("the answer is too large")
	}
	return c.Log.Next(ctx, from, n)
}

// Entries fails: FerretDB needs seconds for a long log, and writes wait.
func (c *counted) Entries(context.Context, func(shared.Entry) error) error {
	return errors.New("the whole log is read at once")
}

func (c *counted) calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// Readers and forwarded writes, however many, make a follower use no more than a tenth of what one client could read, also while it
// begins with a long log.
func TestReadersDoNotDecideHowMuchIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		s := e.patient(t)
		for i := range uint64(3000) {
			save(t, s, put("a", i+1, "1"))
		}
		const takes, within = 2 * time.Millisecond, 40 * time.Second
		log, m := &counted{Log: e.log.Open(), takes: takes}, &mirror{}
		f := shared.New(log, e.leases.Open(), shared.Options{}).NewFollower(m)
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		ended := make(chan error)
		go func() { ended <- f.Run(ctx) }()
		for ctx.Err() == nil {
			f.Want()
			f.Wake()
			time.Sleep(time.Millisecond)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if busy := time.Duration(log.calls()) * takes; busy > within*11/100 {
			t.Errorf("the log was read for %s of %s, want a tenth at most", busy, within)
		}
		if age := time.Since(m.asOf); age > shared.DefaultTTL {
			t.Errorf("the copy is %s old after the log of %d entries was read", age, s.Position())
		}
	})
}

func TestSeveralEntriesAreReadInOneQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const entries = 1000
		e := newEngines()
		s := e.patient(t)
		log, m := &counted{Log: e.log.Open()}, &mirror{}
		f := shared.New(log, e.leases.Open(), shared.Options{}).NewFollower(m)
		catchUp := func(what string) {
			before := log.calls()
			for v := range uint64(entries) {
				save(t, s, put(what, v+1, "1"))
			}
			for !poll(t, f, m) {
			}
			if n := log.calls() - before; n > entries/16 || m.docs[what].Version != entries {
				t.Errorf("%s: %d queries for %d entries, of which version %d was read, want %d queries at most", what, n, entries, m.docs[what].Version, entries/16)
			}
		}
		catchUp("the whole log")
		catchUp("what is new")
	})
}

// Entries of megabytes come from a tenant with large SLAs, or when documents are moved. Several of them may be too large for one answer.
func TestLargeEntriesAreReadOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		s := e.patient(t)
		log, m := &counted{Log: e.log.Open()}, &mirror{}
		f := shared.New(log, e.leases.Open(), shared.Options{}).NewFollower(m)
		for v := range uint64(8) {
			save(t, s, put("a", v+1, strings.Repeat("x", 300<<10)))
		}
		for !poll(t, f, m) {
		}
		if most := slices.Max(append(log.asked, 0)); most > 1 {
			t.Errorf("a query was for %d large entries", most)
		}
		for v := range uint64(200) {
			save(t, s, put("b", v+1, "1"))
		}
		log.large = true
		failed := 0
		for m.docs["b"].Version != 200 {
			if err := f.Poll(t.Context()); err != nil {
				if failed++; failed > 200 {
					t.Fatalf("after %d queries that failed: version %d was read, want 200", failed, m.docs["b"].Version)
				}
			}
		}
		if failed == 0 {
			t.Error("no query failed: the test shows nothing")
		}
	})
}

func TestNobodysCopyIsNotFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		save(t, e.active(t, "one"), put("a", 1, "1"))
		log, m := &counted{Log: e.log.Open()}, &mirror{}
		f := shared.New(log, e.leases.Open(), shared.Options{}).NewFollower(m)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Run(ctx) }()
		time.Sleep(time.Minute)
		f.Wake()
		synctest.Wait()
		if n := log.calls(); n > 0 {
			t.Errorf("the log was read %d times for nobody", n)
		}
		f.Want()
		time.Sleep(time.Second)
		synctest.Wait()
		if age := time.Since(m.asOf); age > 250*time.Millisecond {
			t.Errorf("the copy is %s old, want 250 ms at most", age)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		before := log.calls()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := log.calls(); n != before {
			t.Errorf("a minute after the last read: %d further reads of the log", n-before)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestACurrentCopyHasAllAcknowledgedWrites runs writers that take over from each other, with lost and late requests, lost answers and
// pauses, and a follower with the same faults. Whenever the copy is current as of a time, it has all writes that were acknowledged before.
func TestACurrentCopyHasAllAcknowledgedWrites(t *testing.T) {
	proofs, rereads := 0, 0
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 3))
			e := newEngines()
			ctx, cancel := context.WithCancel(t.Context())
			var mu sync.Mutex // guards acked
			type ack struct {
				at      time.Time
				version uint64
			}
			acked := map[string][]ack{}
			var group sync.WaitGroup
			var links []*sharedtest.Link
			link := func(n uint64) *sharedtest.Link {
				l := sharedtest.NewLink(seed*5+n, time.Second)
				l.Faults(random.Float64()*0.2, random.Float64()*0.2)
				links = append(links, l)
				return l
			}
			for n := range uint64(2) {
				l, choice := link(n), rand.New(rand.NewPCG(seed, 10+n))
				group.Go(func() {
					for ctx.Err() == nil {
						r := shared.New(l.To(e.log.Open()), l.To(e.leases.Open()), shared.Options{Name: fmt.Sprint(n), Slack: 1 + choice.IntN(2000), TTL: time.Second, Log: slog.New(slog.DiscardHandler)})
						s, err := r.Await(ctx, func(shared.Lease) {})
						if err != nil {
							continue
						}
						versions := map[string]uint64{}
						if docs, err := store.Load(ctx, s); err == nil {
							for _, d := range docs {
								versions[d.Key] = d.Version
							}
							// It holds the lease for a short time or not at all, so that the other one takes over soon.
							holding, stop := context.WithTimeout(ctx, time.Duration(choice.IntN(1500))*time.Millisecond)
							group.Go(func() { _ = s.Hold(holding) })
							for range 1 + choice.IntN(40) {
								key := fmt.Sprint("k", choice.IntN(4))
								d := put(key, versions[key]+1, fmt.Sprint(versions[key]+1))
								if s.Save(ctx, []store.Doc{d}) != nil {
									break
								}
								versions[key]++
								mu.Lock()
								acked[key] = append(acked[key], ack{time.Now(), d.Version})
								mu.Unlock()
								time.Sleep(time.Duration(choice.IntN(60)) * time.Millisecond)
							}
							stop()
						}
						time.Sleep(time.Duration(choice.IntN(2000)) * time.Millisecond)
					}
				})
			}
			m := &mirror{}
			m.check = func(asOf time.Time) {
				mu.Lock()
				defer mu.Unlock()
				proofs++
				for key, all := range maps.All(acked) {
					for _, a := range all {
						if a.at.Before(asOf) && m.docs[key].Version < a.version {
							t.Fatalf("seed %d: the copy is current as of %s with %s in version %d, and version %d was acknowledged %s before", seed, asOf, key, m.docs[key].Version, a.version, asOf.Sub(a.at))
						}
					}
				}
			}
			l := link(4)
			f := shared.New(l.To(e.log.Open()), l.To(e.leases.Open()), shared.Options{Log: slog.New(slog.DiscardHandler)}).NewFollower(m)
			group.Go(func() { _ = f.Run(ctx) })
			for range 60 {
				f.Want()
				time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
				if p := links[random.IntN(len(links))]; random.IntN(4) == 0 {
					p.Pause()
					time.Sleep(time.Duration(random.IntN(4000)) * time.Millisecond)
					p.Continue()
				}
			}
			cancel()
			group.Wait()
			for _, l := range links {
				l.Settle()
			}
			rereads += m.resets
		})
	}
	if proofs < 500 || rereads < 100 {
		t.Errorf("the copies were current %d times, and read the whole log %d times: the test shows too little", proofs, rereads)
	}
}
