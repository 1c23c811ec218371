// Package fairshare bounds resources that outside input can grow, and divides each fairly among
// its holders: tenants, users, addresses, certificates.
//
//   - Pool has a bounded number of places. When it is full, a newcomer takes a place of the
//     largest holder, so that no holder can exhaust the pool for others.
//   - Turns bounds the number of holders that work at the same time; others wait for their turn.
//   - Rates is a token bucket per key.
//
// The memory of each is bounded by its total, whatever the number of keys. Time is an argument.
// All are safe for concurrent use.
//
// A path names a holder from the coarsest group to the finest, such as {"tenant/acme",
// "user/ann"} or Address(a). Each level is divided fairly on its own.
//
// Every bound of a daemon is declared in a package variable, which adds it to the table in
// docs/security.md:
//
//	var streamPlaces = fairshare.Bound{Per: "tenant", Beyond: "…", Attack: "TestFollowedLogsLeaveRoomForOthers"}.
//		Declare("streams that a cluster dials to its root", 64, 16)
//	pool := fairshare.NewPool(streamPlaces, fairshare.Keep)
package fairshare

import (
	"cmp"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Bound describes one bounded resource. It is also a row of docs/security.md.
type Bound struct {
	Resource string // what is bounded; unique
	Total    int    // maximum of all holders together
	Unit     string // of Total and Share, such as "MiB"; empty: pieces
	Share    []int  // maximum of one holder at each level of the path; absent or 0: Total
	Per      string // the levels, in words: "tenant, then person"
	Beyond   string // what happens beyond the bound
	Attack   string // name of the test that exceeds it
	Where    string // package of the declaration; set by Declare
}

var declared struct {
	sync.Mutex
	bounds []Bound
}

// Declare adds a bound to the table and returns it. It is called when packages are initialized,
// and panics if the bound is incomplete or its Resource is declared already.
func Declare(b Bound) Bound { return declare(b) }

// Declare declares the bound of a resource that has the other fields of b, so that similar bounds
// share them.
func (b Bound) Declare(resource string, total int, share ...int) Bound {
	b.Resource, b.Total, b.Share = resource, total, share
	return declare(b)
}

func declare(b Bound) Bound {
	if b.Resource == "" || b.Total <= 0 || b.Per == "" || b.Beyond == "" || b.Attack == "" {
		panic(fmt.Sprintf("fairshare: bound %+v is incomplete", b))
	}
	if pc, _, _, ok := runtime.Caller(2); ok {
		dir, name := path.Split(runtime.FuncForPC(pc).Name()) // path/of/package.init or .func
		name, _, _ = strings.Cut(name, ".")
		b.Where = strings.TrimPrefix(dir+name, "github.com/treeline-edge/treeline/")
	}
	declared.Lock()
	defer declared.Unlock()
	for _, d := range declared.bounds {
		if d.Resource == b.Resource {
			panic(fmt.Sprintf("fairshare: %q is declared in %s and %s", b.Resource, d.Where, b.Where))
		}
	}
	declared.bounds = append(declared.bounds, b)
	return b
}

// Declared returns the bounds of all packages that the program imports, by package
// and resource.
func Declared() []Bound {
	declared.Lock()
	defer declared.Unlock()
	out := slices.Clone(declared.bounds)
	slices.SortFunc(out, func(a, b Bound) int {
		return cmp.Or(cmp.Compare(a.Where, b.Where), cmp.Compare(a.Resource, b.Resource))
	})
	return out
}

// share returns the maximum of one holder at the level; 0: no limit except Total.
func (b Bound) share(level int) int {
	if level < len(b.Share) && b.Share[level] < b.Total {
		return b.Share[level]
	}
	return 0
}

// Full is the error of a bound that is reached: api.ErrTooMany if it is the caller's own
// share, api.ErrUnavailable if it is the total.
type Full struct {
	Resource string
	Limit    int
	Own      bool          // Limit is the caller's share
	Holder   string        // of the share, if Own
	Retry    time.Duration // when to try again; 0: unknown
}

func (f *Full) Error() string {
	again := "try again later"
	if f.Retry > 0 {
		again = fmt.Sprintf("try again in %s", f.Retry.Round(time.Millisecond))
	}
	if f.Own {
		return fmt.Sprintf("%s: the limit of %d for %s is reached, %s: %v", f.Resource, f.Limit, f.Holder, again, api.ErrTooMany)
	}
	return fmt.Sprintf("%s: the limit of %d for all is reached, %s: %v", f.Resource, f.Limit, again, api.ErrUnavailable)
}

// RetryAfter returns how long to wait before another attempt; 0: unknown.
func (f *Full) RetryAfter() time.Duration { return f.Retry }

func (f *Full) Unwrap() error {
	if f.Own {
		return api.ErrTooMany
	}
	return api.ErrUnavailable
}
