package step

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/store"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestTimersAgreeWithASimpleTwin compares the heap with a linear search of a map.
func TestTimersAgreeWithASimpleTwin(t *testing.T) {
	type entry struct {
		at  time.Time
		seq int
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var timers Timers[int]
		twin, seq, now := map[int]entry{}, 0, epoch
		first := func() (key int, e entry, ok bool) {
			for k, o := range twin {
				if !ok || o.at.Before(e.at) || o.at.Equal(e.at) && o.seq < e.seq {
					key, e, ok = k, o, true
				}
			}
			return key, e, ok
		}
		for range 200 {
			key, at := rng.IntN(12), now.Add(time.Duration(rng.IntN(20))*time.Second)
			switch rng.IntN(5) {
			case 0, 1:
				seq++
				timers.Set(key, at)
				twin[key] = entry{at, seq}
			case 2:
				if e, ok := twin[key]; !ok || at.Before(e.at) {
					seq++
					twin[key] = entry{at, seq}
				}
				timers.SetEarlier(key, at)
			case 3:
				timers.Clear(key)
				delete(twin, key)
			case 4:
				now = now.Add(time.Duration(rng.IntN(8)) * time.Second)
				want, e, ok := first()
				ok = ok && !e.at.After(now)
				got, popped := timers.Pop(now)
				if popped != ok || ok && got != want {
					t.Fatalf("seed %d: Pop gave %v %v, want %v %v", seed, got, popped, want, ok)
				}
				if ok {
					delete(twin, want)
				}
			}
			_, e, _ := first()
			if !timers.Next().Equal(e.at) {
				t.Fatalf("seed %d: Next is %v, want %v", seed, timers.Next(), e.at)
			}
			for k := range 12 {
				if _, ok := twin[k]; timers.Has(k) != ok {
					t.Fatalf("seed %d: Has(%d) is %v", seed, k, !ok)
				}
			}
		}
	}
}

// disk is a store that applies store.Decide.
type disk map[docKey]store.Doc

func (d disk) save(t *testing.T, docs []store.Doc) {
	t.Helper()
	if err := store.Validate(docs); err != nil {
		t.Fatal(err)
	}
	for i, doc := range docs {
		k := docKey{doc.Kind, doc.Key}
		switch store.Decide(d[k], docs[i:]) {
		case store.Refuse:
			t.Fatalf("the store refuses %s %s version %d over %d", doc.Kind, doc.Key, doc.Version, d[k].Version)
		case store.Write:
			if doc.Data == nil {
				delete(d, k)
			} else {
				d[k] = doc
			}
		}
	}
}

func (d disk) restore() *Journal {
	j := new(Journal)
	for _, doc := range d {
		j.Restored(doc)
	}
	return j
}

// TestPinnedSaveStaysBeforeWhatReliesOnIt puts a record, another one, and the first one again.
func TestPinnedSaveStaysBeforeWhatReliesOnIt(t *testing.T) {
	j := new(Journal)
	j.Put("k", "giver", "free")
	j.Pin("k", "giver")
	j.Put("k", "taker", "taken")
	j.Put("k", "giver", "elsewhere")
	var got []string
	for _, d := range j.Take() {
		got = append(got, fmt.Sprintf("%s %d %s", d.Key, d.Version, d.Data))
	}
	if want := []string{`giver 1 "free"`, `taker 1 "taken"`, `giver 2 "elsewhere"`}; !slices.Equal(got, want) {
		t.Errorf("%q is saved, want %q", got, want)
	}
}

// TestStoreAcceptsEveryJournal puts and deletes at random, crashes after a
// prefix of a step's saves, and repeats whole saves.
func TestStoreAcceptsEveryJournal(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 2))
		on, j := disk{}, new(Journal)
		want := map[string]string{}
		for n := range 60 {
			for range rng.IntN(6) {
				key := fmt.Sprint(rng.IntN(3))
				if rng.IntN(3) == 0 {
					j.Delete("k", key)
					delete(want, key)
				} else {
					v := fmt.Sprint(n, rng.IntN(3))
					j.Put("k", key, v)
					want[key] = v
				}
				if rng.IntN(4) == 0 {
					j.Pin("k", key)
				}
			}
			docs := j.Take()
			if rng.IntN(5) == 0 { // a crash: a prefix is durable
				on.save(t, docs[:rng.IntN(len(docs)+1)])
				j, want = on.restore(), map[string]string{}
				for k, d := range on {
					want[k.key] = string(d.Data[1 : len(d.Data)-1])
				}
				continue
			}
			on.save(t, docs)
			if rng.IntN(3) == 0 { // its answer was lost
				on.save(t, docs)
			}
			if len(on) != len(want) {
				t.Fatalf("seed %d: the store holds %v, want %v", seed, on, want)
			}
			for k, v := range want {
				if got := string(on[docKey{"k", k}].Data); got != fmt.Sprintf("%q", v) {
					t.Fatalf("seed %d: %s is %s, want %q", seed, k, got, v)
				}
			}
		}
	}
}

// TestCounterNeverRepeatsANumber takes more than a block in one step, saves each number in its own
// document, and crashes between any two saves.
func TestCounterNeverRepeatsANumber(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 3))
		on, j, c := disk{}, new(Journal), new(Counter)
		highest := uint64(0)
		for range 4 {
			for range rng.IntN(3 * Block) {
				n := c.Next(j, "meta", "counter")
				if n <= highest {
					t.Fatalf("seed %d: %d after %d was stored", seed, n, highest)
				}
				j.Put("number", fmt.Sprint(n), n)
			}
			docs := j.Take()
			docs = docs[:rng.IntN(len(docs)+1)]
			on.save(t, docs)
			for _, d := range docs {
				var n uint64
				if _, err := fmt.Sscan(d.Key, &n); err == nil {
					highest = max(highest, n)
				}
			}
			j, c = on.restore(), new(Counter)
			if d, ok := on[docKey{"meta", "counter"}]; ok {
				if err := c.Restore(d.Data); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func TestClockStandsStillWhileTheProcessDoes(t *testing.T) {
	at := func(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }
	steps := []struct {
		name      string
		now, next float64 // next on the clock; negative: none
		want      float64
	}{
		{"first", 0, 5, 0},
		{"woken in time", 5, 10, 5},
		{"an input before the wake-up", 7, 10, 7},
		{"a little late is no pause", 11, 15, 11},
		{"thirty seconds late", 45, 20, 15},
		{"and on from there", 50, -1, 20},
		{"nothing was due, so nobody was late", 150, -1, 120},
	}
	var k Clock
	prev := -1.0
	for _, s := range steps {
		next := time.Time{}
		if prev >= 0 {
			next = at(prev)
		}
		if got := k.Observe(at(s.now), next); !got.Equal(at(s.want)) {
			t.Errorf("%s: %v, want %v", s.name, got.Sub(epoch), at(s.want).Sub(epoch))
		}
		prev = s.next
	}
	if !k.Real(at(120)).Equal(at(150)) {
		t.Errorf("Real: %v", k.Real(at(120)).Sub(epoch))
	}
	if !k.Real(time.Time{}).IsZero() {
		t.Error("Real of no moment is a moment")
	}
}

func TestQueueKeepsTheOrderOfTheFirstAdd(t *testing.T) {
	var q Queue[string]
	for _, k := range []string{"b", "a", "c", "a"} {
		q.Add(k)
	}
	q.Remove("b")
	q.Remove("unknown")
	q.Add("b")
	if got := q.List(); !slices.Equal(got, []string{"a", "c", "b"}) || !q.Has("b") || q.Has("unknown") {
		t.Errorf("the queue is %v", got)
	}
}
