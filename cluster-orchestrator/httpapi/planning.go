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
	"github.com/treeline-edge/treeline/internal/problem"
)

// What one plan may ask: the core answers nobody else meanwhile.
const (
	maxPlan       = 1000    // instances
	maxPlanBody   = 8 << 20 // bytes
	maxPlanValues = 100_000 // objects, arrays and members in the body: decoded and validated, each costs up to 2.5 KiB
)

// The plans that are read, decoded and made at the same time.
const (
	planAll    = 2                // of all tenants
	planTenant = 1                // of one tenant
	planQueue  = 16               // of one tenant that wait
	planWait   = 10 * time.Second // how long one waits
	planRead   = 5 * time.Second  // how long the body may take
)

var planTurns = fairshare.Declare(fairshare.Bound{
	Resource: "plans that wait to be read and made", Total: 256, Share: []int{planQueue}, Per: "tenant",
	Beyond: "2 are read and made at once, 1 of one tenant, and tenants take turns; 429 after 10 s and beyond the share; 413 beyond 8 MiB, 100,000 values or 1000 instances",
	Attack: "TestPlansOfOneTenantLeaveRoomForOthers",
})

// planTurn admits a plan when it is its tenant's turn, and reads and measures its
// body before anything decodes it: a few bytes of JSON may become a structure of a
// hundred times their size.
func (a *API) planTurn(ctx huma.Context, next func(huma.Context)) {
	r, w := humachi.Unwrap(ctx)
	refuse := func(err error) { problem.Write(w, problemOf(err)) }
	p := principalOf(r.Context())
	if p.User == "" {
		refuse(fmt.Errorf("plan: sign in: %w", api.ErrUnauthenticated))
		return
	}
	wait, cancel := context.WithTimeout(r.Context(), planWait)
	leave, err := a.plans.Enter(wait, time.Now(), apishare.Holder(p)[:1], false)
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

// readPlan reads the body of a plan within its bounds.
func readPlan(ctx huma.Context, r *http.Request) ([]byte, error) {
	_ = ctx.SetReadDeadline(time.Now().Add(planRead)) // calls from the root have none: the root bounds them
	defer func() { _ = ctx.SetReadDeadline(time.Time{}) }()
	body, err := io.ReadAll(io.LimitReader(r.Body, maxPlanBody+1))
	if err != nil {
		return nil, fmt.Errorf("read a plan: %w: %w", err, api.ErrInvalid)
	}
	if len(body) > maxPlanBody {
		return nil, fmt.Errorf("read a plan: at most %d bytes are taken: %w", maxPlanBody, api.ErrTooLarge)
	}
	if n := valuesOf(body); n > maxPlanValues {
		return nil, fmt.Errorf("read a plan of %d values: at most %d are taken; plan fewer instances at once: %w", n, maxPlanValues, api.ErrTooLarge)
	}
	return body, nil
}

// valuesOf returns at least the number of values in a JSON text: what opens an
// object or array, or separates two values, outside strings.
func valuesOf(text []byte) int {
	n, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '{' || c == '[' || c == ','):
			n++
		}
	}
	return n
}
