package httpapi

import (
	"context"
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/watch"
)

func (a *API) registerEvents() {
	op := rest.Tag("events").Get("/v1/events", "List events").About("The stored events of applications, instances and clusters, oldest first.")
	handle(a, a.watchable(op, "event", rights.EventsRead), rights.EventsRead, a.listEvents)
}

func (a *API) listEvents(ctx context.Context, p rights.Principal, in *struct {
	ListInput
	Instance string `query:"instance" doc:"Only events of this instance, by its id."`
	Users    bool   `query:"users" doc:"Of a list: only what users did or were refused, the records of operations."`
	Tail     int    `query:"tail" minimum:"0" maximum:"5000" doc:"Only the newest events, this many; 0: all."`
},
) (*listOut[api.Event], error) {
	since := watch.Position{}
	if in.Since != "" {
		var err error
		if since, err = watch.ParsePosition(in.Since); err != nil {
			return nil, err
		}
	}
	out, err := list(ctx, a, p, &in.ListInput, listing[api.Event]{
		path: "/v1/events", action: rights.EventsRead, tenant: a.eventTenant, id: eventObject, tail: in.Tail,
		all: func(api.Tenant) []api.Event { // list filters by tenant
			return a.core.Events(eventlog.Filter{Instance: api.InstanceID(in.Instance), Since: since.Revision})
		},
		only: func(e api.Event) bool { return (!in.Users || e.By != "") && a.mayRead(p, e) },
		key:  func(e api.Event) string { return fmt.Sprintf("%020d", e.Seq) },
	})
	if err != nil {
		return nil, err
	}
	for i, e := range out.Body.Items {
		out.Body.Items[i] = a.shownEvent(p, e)
	}
	return out, nil
}
