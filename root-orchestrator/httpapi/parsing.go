package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/problem"
)

// Limits for the concurrent parsing of SLA documents. Each takes at most 64 MiB and 300 ms of CPU
// time (tested in internal/yaml), all together at most 256 MiB.
const (
	parseAll    = 4                // of all tenants
	parseTenant = 2                // of one tenant
	parseQueue  = 64               // documents of one tenant that wait
	parseWait   = 10 * time.Second // maximum time that one waits
)

var parseTurns = fairshare.Declare(fairshare.Bound{
	Resource: "SLA documents that wait to be parsed", Total: 1024, Share: []int{parseQueue}, Per: "tenant",
	Beyond: "4 are parsed at once, 2 of one tenant, and tenants take turns; 429 after 10 s and beyond the share",
	Attack: "TestDocumentsOfOneTenantLeaveRoomForOthers",
})

// parsing limits the SLA documents that are parsed at the same time, in total and per topmost
// tenant. It is safe for concurrent use.
type parsing struct {
	turns  *fairshare.Turns
	decode func(document) (api.SLA, error) // decodeSLA; tests replace it
}

func newParsing() *parsing {
	return &parsing{turns: fairshare.NewTurns(parseTurns, parseAll, parseTenant), decode: decodeSLA}
}

// document is the text of an SLA.
type document struct {
	contentType string
	body        []byte
	into        *api.Application // gets the services of a document that names no application; nil: the document names them
}

// sla waits for the tenant's turn and parses a document.
func (s *parsing) sla(ctx context.Context, tenant api.Tenant, doc document) (api.SLA, error) {
	ctx, cancel := context.WithTimeout(ctx, parseWait)
	defer cancel()
	leave, err := s.turns.Enter(ctx, time.Now(), []string{string(tenant.Top())}, false)
	if errors.Is(err, context.DeadlineExceeded) {
		return api.SLA{}, problem.New(http.StatusTooManyRequests, fmt.Sprintf("the SLA was not parsed within %s, because others are before it; send fewer at the same time", parseWait))
	}
	if err != nil {
		return api.SLA{}, fmt.Errorf("wait to parse an SLA: %w", err)
	}
	defer leave()
	return s.decode(doc)
}
