package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/records"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addons"
	"github.com/treeline-edge/treeline/root-orchestrator/webhooks"
)

// openWebhooks reads the webhooks among the loaded documents.
func (a *API) openWebhooks() (err error) {
	a.webhooks, err = webhooks.New(webhooks.Options{
		Store: a.opt.Store, Loaded: a.opt.Loaded, Sealer: a.opt.Sealer, Allow: a.opt.WebhookNetworks, Now: a.opt.Now, Log: a.opt.Log,
		Events: func(ctx context.Context, since api.Revision) (events []api.Event, newest api.Revision, err error) {
			err = a.owner.Read(ctx, func() {
				newest = a.core.Revision()
				events = a.core.Events(eventlog.Filter{Since: since})
			})
			return events, newest, err
		},
		Shown: a.eventFor,
		Note: func(ctx context.Context, w api.Webhook, r api.Reason, text string) error {
			return a.owner.Do(ctx, root.WebhookNoted{Tenant: w.Tenant, ID: w.ID, Reason: r, Text: text}, nil)
		},
	})
	return err
}

// RunWebhooks sends events to webhooks until ctx ends. It first deletes the webhooks of addons whose installation a crash
// interrupted.
func (a *API) RunWebhooks(ctx context.Context) error {
	for id := range addonsOf(a.webhooks.All()) {
		if err := a.checked(ctx, id.Tenant(), func(ctx context.Context) error { return a.sweepWebhooks(ctx, id) }); err != nil {
			a.opt.Log.Warn("webhooks of an addon not deleted", "addon", id, "err", err)
		}
	}
	return a.webhooks.Run(ctx)
}

// eventFor returns an event as the creator of the webhook may see it, if it is one of the tenant or a tenant below it.
// The user's present roles count, and not those at the time when the webhook was created.
func (a *API) eventFor(w api.Webhook, e api.Event) (api.Event, bool, error) {
	t := w.Tenant
	u, err := a.opt.Accounts.User(account.UserID(w.By))
	if err != nil {
		return e, false, err
	}
	if u.Created.After(w.Created) {
		return e, false, fmt.Errorf("user %s, who created the webhook, was deleted, and this is another one of that name: %w", w.By, api.ErrForbidden)
	}
	p := rights.Principal{User: w.By, Tenant: u.ID.Tenant(), Roles: u.Roles}
	if err := rights.Allowed(p, rights.EventsRead, t); err != nil {
		return e, false, err
	}
	of := a.eventTenant(e)
	if of != t && t != rights.System && !strings.HasPrefix(string(of), string(t)+"/") || rights.Allowed(p, rights.EventsRead, of) != nil || !a.mayRead(p, e) {
		return e, false, nil
	}
	return a.shownEvent(p, e), true, nil
}

type webhookIn struct {
	ID string `path:"id" maxLength:"64"`
}

func (a *API) registerWebhooks() {
	tag := rest.Tag("webhooks")
	answer(a, tag.Create("/v1/webhooks", "Create webhook", 404, 409).
		About("Posts the tenant's events to a URL from now on, signed with the secret in the answer, which is shown once."), rights.AppsWrite, a.createWebhook)
	answer(a, tag.Get("/v1/webhooks", "List webhooks"), rights.EventsRead,
		func(_ context.Context, p rights.Principal, _ *rest.None) (api.Page[api.Webhook], error) {
			return api.Page[api.Webhook]{Items: visible(p, rights.EventsRead, a.webhooks.All(), func(w api.Webhook) api.Tenant { return w.Tenant })}, nil
		})
	answer(a, tag.Get("/v1/webhooks/{id}", "Get webhook", 404).About("With its dead letters."), rights.EventsRead,
		func(_ context.Context, p rights.Principal, in *webhookIn) (api.Webhook, error) {
			return a.webhook(p, rights.EventsRead, in.ID)
		})
	act(a, tag.Delete("/v1/webhooks/{id}", "Delete webhook", 404), rights.AppsWrite,
		func(ctx context.Context, p rights.Principal, in *webhookIn) error {
			w, err := a.webhook(p, rights.AppsWrite, in.ID)
			if err != nil {
				return err
			}
			if w.Addon != "" {
				var owner api.Addon
				if err := a.owner.Read(ctx, func() { owner, _ = a.core.Addon(w.Addon) }); err != nil {
					return err
				}
				if slices.Contains(owner.Webhooks, w.ID) {
					return addons.Belongs("webhook", w.ID, w.Addon)
				}
			}
			records.Of(ctx, records.Record{Tenant: w.Tenant, Kind: "webhook", Object: w.ID})
			return a.webhooks.Delete(ctx, w.ID)
		})
	answer(a, tag.Post("/v1/webhooks/{id}/retry", "Retry webhook", 404).
		About("Sends the dead letters once more, and the event that waits for its next try."), rights.AppsWrite,
		func(ctx context.Context, p rights.Principal, in *webhookIn) (api.Webhook, error) {
			w, err := a.webhook(p, rights.AppsWrite, in.ID)
			if err != nil {
				return w, err
			}
			records.Of(ctx, records.Record{Tenant: w.Tenant, Kind: "webhook", Object: w.ID})
			err = a.webhooks.Retry(ctx, w.ID)
			return w, err
		})
}

func (a *API) webhook(p rights.Principal, action rights.Action, id string) (api.Webhook, error) {
	w, ok := a.webhooks.Get(id)
	if !ok || rights.Allowed(p, rights.EventsRead, w.Tenant) != nil {
		return api.Webhook{}, missing("webhook", id)
	}
	return w, rights.Allowed(p, action, w.Tenant)
}

func (a *API) createWebhook(ctx context.Context, p rights.Principal, in *rest.Body[api.NewWebhook]) (api.Webhook, error) {
	tenant := cmp.Or(in.Body.Tenant, p.Tenant)
	for _, action := range []rights.Action{rights.AppsWrite, rights.EventsRead} {
		if err := rights.Allowed(p, action, tenant); err != nil {
			return api.Webhook{}, err
		}
	}
	if tenant != rights.System {
		if _, err := a.opt.Accounts.Tenant(tenant); err != nil {
			return api.Webhook{}, err
		}
	}
	w, err := a.webhooks.Create(ctx, in.Body, tenant, p.User, "")
	records.Of(ctx, records.Record{Tenant: tenant, Kind: "webhook", Object: w.ID})
	return w, err
}
