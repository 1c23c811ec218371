package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/jsonsize"
	"github.com/treeline-edge/treeline/internal/problem"
)

// Bounds of one plan. The core handles no other input while it makes one.
const (
	maxPlan       = 1000    // instances
	maxPlanBody   = 8 << 20 // bytes
	maxPlanValues = 100_000 // JSON values; each takes up to 2.5 KiB when decoded and validated
)

// Bounds of the plans that are read, decoded and made at the same time.
const (
	planAll    = 2                // of all tenants
	planTenant = 1                // of one tenant
	planQueue  = 16               // waiting plans of one tenant
	planWait   = 10 * time.Second // maximum time to wait
	planRead   = 5 * time.Second  // maximum time to read the body
)

var planTurns = fairshare.Declare(fairshare.Bound{
	Resource: "plans that wait to be read and made", Total: 256, Share: []int{planQueue}, Per: "tenant",
	Beyond: "2 are read and made at once, 1 of one tenant, and tenants take turns; 429 after 10 s and beyond the share; 413 beyond 8 MiB, 100,000 values or 1000 instances",
	Attack: "TestPlansOfOneTenantLeaveRoomForOthers",
})

// planTurn is middleware that waits for the tenant's turn, and then reads the body and checks
// its size (package jsonsize) before it is decoded.
func (a *API) planTurn(ctx huma.Context, next func(huma.Context)) {
	r, w := humachi.Unwrap(ctx)
	refuse := func(err error) { problem.Write(w, problemOf(err)) }
	p := principalOf(r.Context())
	if p.User == "" {
		refuse(fmt.Errorf("plan: sign in: %w", api.ErrUnauthenticated))
		return
	}
	wait, cancel := context.WithTimeout(r.Context(), planWait)
	leave, err := a.plans.Enter(wait, time.Now(), apishare.Path(p)[:1], false)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) {
		problem.Write(w, problem.New(http.StatusTooManyRequests, fmt.Sprintf("the plan was not made within %s, because others are before it; send fewer at the same time", planWait)))
		return
	}
	if err != nil {
		refuse(fmt.Errorf("wait to plan: %w", err))
		return
	}
	defer leave()
	body, err := readPlan(ctx, r)
	if err != nil {
		refuse(err)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	next(ctx)
}

func readPlan(ctx huma.Context, r *http.Request) ([]byte, error) {
	_ = ctx.SetReadDeadline(time.Now().Add(planRead)) // no effect on requests from the root, which bounds them
	defer func() { _ = ctx.SetReadDeadline(time.Time{}) }()
	body, err := jsonsize.Limit{Bytes: maxPlanBody, Values: maxPlanValues}.Read(r.Body)
	switch {
	case errors.Is(err, api.ErrTooLarge):
		return nil, fmt.Errorf("read a plan; plan fewer instances at once: %w", err)
	case err != nil:
		return nil, fmt.Errorf("read a plan: %w: %w", err, api.ErrInvalid)
	}
	return body, nil
}
