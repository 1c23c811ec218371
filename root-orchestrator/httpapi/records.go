package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/records"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// unrecorded are the operations with a changing method that leave no record when they succeed, and why
// (ADR 0350). All others leave one by their registration.
var unrecorded = map[string]string{
	"planSLA":        "changes nothing",
	"refreshSession": "continues a session, every few minutes",
	"renewStream":    "continues a stream, whose begin is recorded",
	"logOut":         "ends a session of the user's own, by its token alone",
	"exchangeToken":  "makes a token of minutes for one cluster, which records what is done with it",
	"takeSnapshot":   "is recorded before the snapshot is sent",

	"postSLA": byCore, "applySLA": byCore, "deleteApp": byCore, "scale": byCore, "setScale": byCore,
	"pauseRollout": byCore, "promoteRollout": byCore, "resumeRollout": byCore, "undoRollout": byCore,
	"createConfig": byCore, "replaceConfig": byCore, "deleteConfig": byCore,
	"createSecret": byCore, "replaceSecret": byCore, "deleteSecret": byCore,
	"createKind": byCore, "replaceKind": byCore, "deleteKind": byCore,
	"createResource": byCore, "replaceResource": byCore, "deleteResource": byCore,
	"deleteVolume": byCore, "createSnapshot": byCore, "deleteSnapshot": byCore, "moveInstance": byCore,
	"setGrant": byCore, "installAddon": byCore, "upgradeAddon": byCore, "removeAddon": byCore,
}

const byCore = "the core's event names the user"

// operated starts the record of an operation. The returned function stores it, if the operation succeeded or the
// user lacked the right to it.
func (a *API) operated(ctx context.Context, p rights.Principal, op huma.Operation) (context.Context, func(error)) {
	if op.Method == http.MethodGet {
		return ctx, func(error) {}
	}
	r := records.Target(op.Path, func(name string) string { return chi.URLParamFromCtx(ctx, name) })
	if at, ok := strings.CutPrefix(op.Path, "/v1/clusters/{id}"); ok {
		cluster := api.ClusterID(chi.URLParamFromCtx(ctx, "id"))
		r.Tenant = a.ownerOf(cluster)
		if strings.Contains(at, "{") { // something in the cluster
			r.Object = string(cluster) + "/" + r.Object
		}
	} else if r.Tenant == "" {
		r.Tenant = p.Tenant
	}
	asked := r
	ctx, record := records.Start(ctx, r)
	return ctx, func(err error) {
		by := p.User
		switch {
		case err == nil && unrecorded[op.OperationID] == "":
			if by == "" {
				by = record.By
			}
			a.write(ctx, root.Operated{Tenant: record.Tenant, Kind: record.Kind, Object: record.Object, Text: record.Describe(op.Summary, by), By: by})
		case errors.Is(err, api.ErrForbidden) && by != "" && a.refusals.Allow(a.opt.Now(), p.Tenant, by):
			// In the user's own tenant, because others have not given the user a right to write to their logs.
			user := records.Object("user", by)
			a.write(ctx, root.Operated{Tenant: user.Tenant, Kind: user.Kind, Object: user.Object, Text: asked.Refusal(op.Summary, by), By: by})
		}
	}
}

// write stores a record, also if the request is over.
func (a *API) write(ctx context.Context, in root.Operated) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if err := a.owner.Do(ctx, in, nil); err != nil {
		a.opt.Log.Error("operation not recorded", "kind", in.Kind, "object", in.Object, "what", in.Text, "err", err)
	}
}

// ownerOf returns the tenant of a cluster, also of one that was removed.
func (a *API) ownerOf(id api.ClusterID) api.Tenant {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.owners[id]
}

// eventActions are the rights that events of some kinds need besides rights.EventsRead: those that show the
// objects themselves.
var eventActions = map[string]rights.Action{"user": rights.UsersRead, "token": rights.ClustersJoin, "node": rights.NodesRead}

// mayRead reports whether the principal, who may read the events of the event's tenant, may read this one.
func (a *API) mayRead(p rights.Principal, e api.Event) bool {
	action, ok := eventActions[e.Kind]
	return !ok || rights.Allowed(p, action, a.eventTenant(e)) == nil
}
