package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/problem"
)

// The bounds of SLA documents that are parsed at the same time. Each costs at
// most 64 MiB and 300 ms of CPU (package internal/yaml proves it), so all
// together hold at most 256 MiB.
const (
	parseAll    = 4                // of all tenants
	parseTenant = 2                // of one tenant
	parseQueue  = 64               // of one tenant that wait
	parseWait   = 10 * time.Second // how long one waits
)

// parsing bounds the documents that are parsed at the same time, in total and
// per tenant. A tenant's documents wait for their own tenant's slots first, so
// that at most parseTenant of them stand before another tenant's. It is safe for
// concurrent use.
type parsing struct {
	all    *semaphore.Weighted
	decode func(contentType string, body []byte) (api.SLA, error) // decodeSLA; tests replace it

	mu      sync.Mutex // guards tenants
	tenants map[api.Tenant]*parser
}

type parser struct {
	slots *semaphore.Weighted
	users int // documents that are parsed or wait
}

func newParsing() *parsing {
	return &parsing{all: semaphore.NewWeighted(parseAll), decode: decodeSLA, tenants: map[api.Tenant]*parser{}}
}

// sla parses a document that the tenant sent, when it is its turn.
func (s *parsing) sla(ctx context.Context, tenant api.Tenant, contentType string, body []byte) (api.SLA, error) {
	t, err := s.enter(tenant)
	if err != nil {
		return api.SLA{}, err
	}
	defer s.leave(tenant, t)
	ctx, cancel := context.WithTimeout(ctx, parseWait)
	defer cancel()
	if err := t.slots.Acquire(ctx, 1); err != nil {
		return api.SLA{}, waited(err)
	}
	defer t.slots.Release(1)
	if err := s.all.Acquire(ctx, 1); err != nil {
		return api.SLA{}, waited(err)
	}
	defer s.all.Release(1)
	return s.decode(contentType, body)
}

func (s *parsing) enter(tenant api.Tenant) (*parser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[tenant]
	if t == nil {
		t = &parser{slots: semaphore.NewWeighted(parseTenant)}
		s.tenants[tenant] = t
	}
	if t.users >= parseTenant+parseQueue {
		return nil, problem.New(http.StatusTooManyRequests, fmt.Sprintf("tenant %s has %d SLA documents waiting to be parsed; send fewer at the same time", tenant, parseQueue))
	}
	t.users++
	return t, nil
}

func (s *parsing) leave(tenant api.Tenant, t *parser) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(s.tenants, tenant)
	}
}

func waited(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return problem.New(http.StatusTooManyRequests, fmt.Sprintf("the SLA was not parsed within %s, because others are before it; send fewer at the same time", parseWait))
	}
	return fmt.Errorf("wait to parse an SLA: %w", err)
}
