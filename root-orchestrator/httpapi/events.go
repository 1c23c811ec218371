package httpapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/root-orchestrator/root/events"
)

func (a *API) registerEvents() {
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/events", Summary: "List events", Tags: []string{"events"},
		Description: "The durable story of applications, instances and clusters, oldest first.",
		Middlewares: huma.Middlewares{a.watchable("event", rights.EventsRead)},
	}, rights.EventsRead, a.listEvents)
}

func (a *API) listEvents(ctx context.Context, p rights.Principal, in *struct {
	ListInput
	Instance string `query:"instance" doc:"Of this instance alone, by its id."`
},
) (*listOut[api.Event], error) {
	t, err := tenantOf(p, rights.EventsRead, in.Tenant)
	if err != nil {
		return nil, err
	}
	since := Position{}
	if in.Since != "" {
		if since, err = ParsePosition(in.Since); err != nil {
			return nil, err
		}
	}
	var all []api.Event
	var rev api.Revision
	err = a.owner.Read(ctx, func() {
		// Whose a cluster's events are the core does not say, so that all are looked at.
		all = a.core.Events(events.Filter{Instance: api.InstanceID(in.Instance), Since: since.Revision})
		rev = a.core.Revision()
	})
	if err != nil {
		return nil, err
	}
	out, err := listed("/v1/events", &in.ListInput, rev, all,
		func(e api.Event) bool {
			owner := a.eventTenant(e)
			return within(eventObject(e), in.Under) && root.Within(owner, t) && rights.Allowed(p, rights.EventsRead, owner) == nil
		},
		func(e api.Event) string { return fmt.Sprintf("%020d", e.Seq) })
	if err != nil {
		return nil, err
	}
	for i := range out.Body.Items {
		out.Body.Items[i] = a.shownEvent(p, out.Body.Items[i])
	}
	return out, nil
}
