package httpapi

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/watch"
)

// The API numbers the changes itself, because the core has no revisions. The first number is from the clock, so that the
// positions of an earlier process are gone.
func firstRevision(now time.Time) api.Revision { return api.Revision(now.UnixMilli()) << 10 }

func (a *API) registerChanges() {
	op := rest.Tag("events").Get("/v1/changes", "Watch changes", 410).Named("watchChanges").
		About("The changes of the cluster, its nodes, instances and records in one stream, as far as the user may see them. The lists have the revision after which it continues; since or Last-Event-ID resumes it. Of a node's load, changes by 5 percent are shown, one in 5 s at most; its last heartbeat is as of the last change.").
		Answers("Server-sent events: change (api.Change), bookmark every 15 s, gone.", "text/event-stream", &huma.Schema{Type: "string"})
	handle(a, op, "", func(_ context.Context, p rights.Principal, in *struct {
		Since       string `query:"since" maxLength:"64" doc:"The position after which to begin; without it, now."`
		LastEventID string `header:"Last-Event-ID" maxLength:"64" doc:"The position after which to resume."`
	},
	) (*streamOut, error) {
		if p.User == "" {
			return nil, fmt.Errorf("watch changes: sign in first: %w", api.ErrUnauthenticated)
		}
		return &streamOut{func(hc huma.Context) {
			r, w := humachi.Unwrap(hc)
			err := a.watches.Serve(w, r, watch.Request{
				Person: p, Now: a.watches.Newest(), Since: in.Since, Server: "cluster",
				Show: func(c api.Change) (api.Change, bool) { return a.showChange(p, c) },
			})
			if err != nil {
				problem.Write(w, problemOf(err))
			}
		}}, nil
	})
}

// Changed passes the core's changes to watchers. It runs on the core's owner and does not block.
func (a *API) Changed(changes ...api.Change) {
	for i, c := range changes {
		if c.Kind == "cluster" {
			changes[i].Object = a.statusNow()
		}
	}
	a.watches.AddNew(changes...)
}

// Recorded passes a record of access to watchers.
func (a *API) Recorded(e api.Event) {
	a.watches.AddNew(api.Change{Kind: "event", ID: strconv.FormatUint(uint64(e.Seq), 10), Tenant: e.Tenant, Object: e})
}

// showChange removes from a change what p may not see. It returns false if p may not see the object. The rules are those of the lists.
func (a *API) showChange(p rights.Principal, c api.Change) (api.Change, bool) {
	if i, ok := c.Object.(api.Instance); ok {
		c.Object = a.shown(p, i)
	}
	switch c.Kind {
	case "cluster":
		return c, a.allowed(p, rights.ClustersRead) == nil
	case "node":
		return c, a.allowed(p, rights.NodesRead) == nil
	case "instance":
		return c, a.sees(p, api.InstanceID(c.ID)) == nil
	case "event":
		e, ok := c.Object.(api.Event)
		return c, ok && a.seesEvent(p, e)
	}
	return c, false
}
