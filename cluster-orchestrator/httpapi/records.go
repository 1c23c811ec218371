package httpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/records"
)

// unrecorded are the operations with a changing method that leave no record by their registration when they
// succeed, and why (ADR 0350).
var unrecorded = map[string]string{
	"plan":           "changes nothing",
	"why":            "changes nothing",
	"renewStream":    "continues a stream, whose begin is recorded",
	"putSnapshot":    "the root repeats it until the snapshot is ready, and records who requested it",
	"takeSnapshot":   "is recorded before the snapshot is sent",
	"moveInstance":   "is recorded before it begins",
	"createOperator": "is recorded before the token is returned",
	"revokeOperator": "is recorded with its token",
}

// operated starts the record of an operation. The returned function stores it, if the operation succeeded or the
// caller lacked the right to it. The records of the cluster's own objects belong to no tenant, so that those of
// its operator's workloads do not replace them.
func (a *API) operated(ctx context.Context, op huma.Operation) (context.Context, func(error)) {
	if op.Method == http.MethodGet {
		return ctx, func(error) {}
	}
	asked := records.Target(op.Path, func(name string) string { return chi.URLParamFromCtx(ctx, name) })
	c := callerOf(ctx)
	ctx, record := records.Start(ctx, asked)
	return ctx, func(err error) {
		switch {
		case err == nil && unrecorded[op.OperationID] == "":
			a.write(ctx, *record, c.User, record.Describe(op.Summary, c.User), !c.root)
		case errors.Is(err, api.ErrForbidden) && c.User != "" && a.refusals.Allow(a.opt.Now(), c.Tenant, c.User):
			// In the caller's own tenant, because others have not given the caller a right to write to their logs.
			user := records.Object("user", c.User)
			a.write(ctx, user, c.User, asked.Refusal(op.Summary, c.User), false)
		}
	}
}

// write stores a record, also if the request is over.
func (a *API) write(ctx context.Context, r records.Record, by, text string, notify bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if err := a.opt.Audit.RecordOperation(ctx, r, by, text, notify); err != nil {
		a.opt.Log.Error("operation not recorded", "kind", r.Kind, "object", r.Object, "what", text, "err", err)
	}
}
