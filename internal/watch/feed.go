package watch

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/treeline-edge/treeline/api"
)

// Position is a position in the sequence of changes: after the N-th change of a revision, or after
// all changes of the revision if N is 0. Its text is "17.2" or "17".
type Position struct {
	Revision api.Revision
	N        int
}

// ParsePosition parses the text of a Position. Error: ErrInvalid.
func ParsePosition(s string) (Position, error) {
	rev, n, cut := strings.Cut(s, ".")
	r, err := strconv.ParseUint(rev, 10, 64)
	p := Position{Revision: api.Revision(r)}
	if err == nil && cut {
		p.N, err = strconv.Atoi(n)
	}
	if err != nil || p.N < 0 {
		return Position{}, fmt.Errorf("position %q is not a revision such as 17 or 17.2: %w", s, api.ErrInvalid)
	}
	return p, nil
}

func (p Position) String() string {
	s := strconv.FormatUint(uint64(p.Revision), 10)
	if p.N > 0 {
		s += "." + strconv.Itoa(p.N)
	}
	return s
}

func (p Position) before(o Position) bool {
	if p.Revision != o.Revision {
		return p.Revision < o.Revision
	}
	return p.N > 0 && (o.N == 0 || p.N < o.N)
}

// Feed keeps the newest changes for watchers. A watcher has a position in the feed and no buffer of
// its own. A watcher whose position is too old gets ErrGone and has to list again. A Feed is safe
// for concurrent use.
type Feed struct {
	mu     sync.Mutex // guards all below
	ring   []entry
	size   int
	bytes  int           // of the custom kinds and resources in ring
	first  uint64        // number of ring[0], counted from the start
	floor  Position      // position of the newest change that is not kept
	newest api.Revision  // of all changes
	more   chan struct{} // closed by the next Add
}

type entry struct {
	at     Position
	change api.Change
}

// NewFeed returns an empty feed that keeps at least the newest size changes after floor, the core's
// present revision.
func NewFeed(size int, floor api.Revision) *Feed {
	return &Feed{size: size, floor: Position{Revision: floor}, newest: floor, more: make(chan struct{})}
}

// Add appends changes. Their revisions must not decrease.
func (f *Feed) Add(changes ...api.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.add(changes)
}

func (f *Feed) add(changes []api.Change) {
	for _, c := range changes {
		f.newest = max(f.newest, c.Revision)
		at := Position{Revision: c.Revision, N: 1}
		if n := len(f.ring); n > 0 && f.ring[n-1].at.Revision >= c.Revision {
			at = Position{f.ring[n-1].at.Revision, f.ring[n-1].at.N + 1}
		}
		f.ring = append(f.ring, entry{at, c})
		f.bytes += weight(c)
	}
	// Cutting at twice the size copies each change at most once.
	number, bytes := len(f.ring), f.bytes
	if number > 2*f.size {
		number = f.size
	}
	if bytes > maxFeedBytes {
		bytes = maxFeedBytes / 2
	}
	cut := 0
	for ; len(f.ring)-cut > number || f.bytes > bytes; cut++ {
		f.bytes -= weight(f.ring[cut].change)
	}
	if cut > 0 {
		f.floor = f.ring[cut-1].at
		f.first += uint64(cut)
		f.ring = append([]entry(nil), f.ring[cut:]...)
	}
	close(f.more)
	f.more = make(chan struct{})
}

// AddNew is Add for changes of a server whose core has no revisions: it numbers them above all others.
func (f *Feed) AddNew(changes ...api.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range changes {
		changes[i].Revision = f.newest + 1 + api.Revision(i)
	}
	f.add(changes)
}

// Newest returns the revision of the newest change, or floor before the first.
func (f *Feed) Newest() api.Revision {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.newest
}

// maxFeedBytes limits the schemas and specs of custom kinds and resources in a Feed. A tenant may change a large one
// often, and each change has all of it.
const maxFeedBytes = 32 << 20

func weight(c api.Change) int {
	switch o := c.Object.(type) {
	case api.CustomKind:
		return len(o.Schema)
	case api.CustomResource:
		return len(o.Spec)
	}
	return 0
}

// open returns the number of the first change after the position. Error: ErrGone if the feed does
// not keep that change any more.
func (f *Feed) open(after Position) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if after.before(f.floor) {
		return 0, f.gone(after)
	}
	for i, e := range f.ring {
		if after.before(e.at) {
			return f.first + uint64(i), nil
		}
	}
	return f.first + uint64(len(f.ring)), nil
}

// from returns the changes from number n on, and a channel that is closed when there are more.
// Error: ErrGone if the feed does not keep change n any more.
func (f *Feed) from(n uint64) ([]entry, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n < f.first {
		return nil, nil, fmt.Errorf("changes came faster than they were read; list again and watch from there: %w", api.ErrGone)
	}
	return f.ring[n-f.first:], f.more, nil
}

func (f *Feed) gone(at Position) error {
	return fmt.Errorf("changes since %s are kept only after %s; list again and watch from there: %w", at, f.floor, api.ErrGone)
}
