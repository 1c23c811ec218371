// Package watch streams the changes of an API's objects to its clients as server-sent events. The APIs of the root and
// of clusters have the same events, positions, resumption and bounds.
//
//	all := watch.New(watch.Options{Size: 10_000, Floor: core.Revision()})
//	all.Add(changes...)                       // on the core's owner
//	err := all.Serve(w, r, watch.Request{…})  // for each watch
package watch

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/sse"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/problem"
)

const bookmarkEvery = 15 * time.Second

// maxWatch limits a watch. A watch also ends when its token expires. The client resumes it.
const maxWatch = 30 * time.Minute

var places = fairshare.Bound{
	Per: "tenant, then person; of each API", Beyond: "429; when all are taken, the newest watch of the largest tenant ends and may resume later", Attack: "TestWatchesOfOneUserLeaveRoomForOthers",
}.Declare("watches", 4096, 1024, 64)

// Options configure Watches.
type Options struct {
	Size  int              // changes that are kept; default 10,000
	Floor api.Revision     // the newest revision at the start; positions before it are gone
	Now   func() time.Time // default time.Now
}

// Watches are the watches of one API and the changes that they stream. It is safe for concurrent use.
type Watches struct {
	*Feed
	places *fairshare.Pool
	now    func() time.Time
}

// New returns an API's watches, without changes.
func New(o Options) *Watches {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Watches{Feed: NewFeed(cmp.Or(o.Size, 10_000), o.Floor), places: fairshare.NewPool(places, fairshare.Keep), now: o.Now}
}

// Request is a request for a watch.
type Request struct {
	Person rights.Principal
	Now    api.Revision // the newest revision; later positions are of another server
	Since  string       // the Position after which to begin, unless the request has the header Last-Event-ID; "": now
	// Show returns a change as the person may see it, and whether it belongs to the watch.
	Show   func(api.Change) (api.Change, bool)
	Server string // in errors, such as "root"
}

// Serve streams changes until the client disconnects, the request's context ends, its place is taken or maxWatch is over. It returns
// an error only before the first byte: ErrInvalid for a position that cannot be parsed, ErrGone for one that is not kept, and a
// *fairshare.Full.
func (ws *Watches) Serve(w http.ResponseWriter, r *http.Request, q Request) error {
	at := Position{Revision: q.Now}
	if since := cmp.Or(r.Header.Get("Last-Event-ID"), q.Since); since != "" {
		var err error
		if at, err = ParsePosition(since); err != nil {
			return err
		}
		if at.Revision > q.Now {
			return fmt.Errorf("position %s is after the newest revision %d, so it is from another %s; list again and watch from there: %w", at, q.Now, q.Server, api.ErrGone)
		}
	}
	seq, err := ws.open(at)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(r.Context())
	defer end()
	place, err := ws.places.Take(ws.now(), apishare.Path(q.Person), end)
	if err != nil {
		return err
	}
	defer place.Release()
	fairshare.ReleasePlace(ctx)

	rc := http.NewResponseController(w)
	send := func(name, id string, data any) error {
		text, err := sse.Encode(name, id, data)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	if send("bookmark", at.String(), bookmark{at.Revision}) != nil {
		return nil
	}
	tick := time.NewTicker(bookmarkEvery)
	defer tick.Stop()
	limit := time.NewTimer(maxWatch)
	defer limit.Stop()
	for {
		entries, more, err := ws.from(seq)
		if err != nil {
			_ = send("gone", "", problem.Of(err, "the "+q.Server+"'s log"))
			return nil
		}
		for _, e := range entries {
			seq++
			at = e.at
			c, ok := q.Show(e.change)
			if !ok {
				continue
			}
			if send("change", at.String(), c) != nil {
				return nil
			}
		}
		if rc.Flush() != nil {
			return nil
		}
		select {
		case <-ctx.Done(): // the client disconnected, or its place was taken
			return nil
		case <-limit.C:
			return nil
		case <-more:
		case <-tick.C:
			if send("bookmark", at.String(), bookmark{at.Revision}) != nil {
				return nil
			}
		}
	}
}

type bookmark struct {
	Revision api.Revision `json:"revision"`
}
