package httpapi

import (
	"context"
	"maps"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/watch"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// watchable makes a list operation answer ?watch=1 with a stream of the kind's changes as
// server-sent events.
func (a *API) watchable(op rest.Operation, kind string, action rights.Action) rest.Operation {
	op.Middlewares = append(op.Middlewares, func(ctx huma.Context, next func(huma.Context)) {
		if w := ctx.Query("watch"); w == "" || w == "0" || w == "false" {
			next(ctx)
			return
		}
		r, w := humachi.Unwrap(ctx)
		if err := a.watch(w, r, map[string]rights.Action{kind: action}); err != nil {
			a.fail(w, r, err)
		}
	})
	return op
}

// watched are the kinds of the stream of all changes, and the action that each requires.
var watched = map[string]rights.Action{
	"app": rights.AppsRead, "service": rights.AppsRead, "instance": rights.AppsRead,
	"cluster": rights.ClustersRead, "event": rights.EventsRead, "kind": rights.AppsRead, "resource": rights.AppsRead,
}

func (a *API) registerChanges() {
	op := rest.Tag("events").Get("/v1/changes", "Watch changes", 410).
		About("The changes of applications, services, instances, clusters, events, custom kinds and resources in one stream, as far as the user may see them: what the watches of their lists stream. Its positions are theirs.").
		Answers("Server-sent events: change (api.Change), bookmark, gone.", "text/event-stream", &huma.Schema{Type: "string"})
	handle(a, op, "", func(_ context.Context, p rights.Principal, in *struct {
		Tenant      api.Tenant `query:"tenant" doc:"Only objects of this tenant; without it, all that the user may see."`
		Since       string     `query:"since" doc:"The revision after which to begin; without it, now."`
		Under       string     `query:"under" doc:"Only objects of this application or service, by its id."`
		LastEventID string     `header:"Last-Event-ID" doc:"The position after which to resume."`
	},
	) (*streamOut, error) {
		if p.User == "" {
			return nil, errNoToken
		}
		may := maps.Clone(watched)
		maps.DeleteFunc(may, func(_ string, action rights.Action) bool { return anywhere(p, action) != nil })
		return &streamOut{func(hc huma.Context) {
			r, w := humachi.Unwrap(hc)
			if err := a.watch(w, r, may); err != nil {
				a.fail(w, r, err)
			}
		}}, nil
	})
}

// watch streams changes of the kinds to a user who may do the action on them. It returns an error only before the first byte.
func (a *API) watch(w http.ResponseWriter, r *http.Request, kinds map[string]rights.Action) error {
	p := principal(r.Context())
	q := r.URL.Query()
	for _, action := range kinds {
		if err := anywhere(p, action); err != nil {
			return err
		}
		if _, err := tenantOf(p, action, api.Tenant(q.Get("tenant"))); err != nil {
			return err
		}
	}
	var now api.Revision
	if err := a.owner.Read(r.Context(), func() { now = a.core.Revision() }); err != nil {
		return err
	}
	keep := scope{tenant: api.Tenant(q.Get("tenant")), under: q.Get("under")}
	return a.watches.Serve(w, r, watch.Request{
		Person: p, Now: now, Since: q.Get("since"), Server: "root",
		Show: func(c api.Change) (api.Change, bool) { return a.show(p, kinds, keep, c) },
	})
}

type scope struct {
	tenant api.Tenant // with the tenants below it; "": all
	under  string     // an application's or a service's id
}

func (s scope) holds(c api.Change) bool {
	if !root.Within(c.Tenant, s.tenant) {
		return false
	}
	id := c.ID
	if e, ok := c.Object.(api.Event); ok {
		id = eventObject(e)
	}
	return api.Under(id, s.under)
}

// eventObject returns the full id of an event's object.
func eventObject(e api.Event) string {
	if e.Tenant == "" {
		return e.Object
	}
	return string(e.Tenant) + "/" + e.Object
}

// show returns the change as the principal may see it, and whether it belongs to the watch.
func (a *API) show(p rights.Principal, kinds map[string]rights.Action, keep scope, c api.Change) (api.Change, bool) {
	action, ok := kinds[c.Kind]
	if !ok || !keep.holds(c) || rights.Allowed(p, action, c.Tenant) != nil {
		return c, false
	}
	switch o := c.Object.(type) {
	case api.Instance:
		c.Object = a.shownInstance(p, o)
	case api.Event:
		if !a.mayRead(p, o) {
			return c, false
		}
		c.Object = a.shownEvent(p, o)
	}
	return c, true
}
