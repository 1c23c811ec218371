// Package promquery evaluates the Prometheus expressions by which services scale, on the server that the
// cluster's operator configured. The expressions are the tenants': each can only read the series of its
// own tenant, and has bounds of time and size.
//
//	q := promquery.New(promquery.Options{URL: "http://127.0.0.1:9090", Label: "tenant", Post: post})
//	g.Go(func() error { return q.Run(ctx) })
//	q.Set(queries) // from the loop's send function
package promquery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/autoscale"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/promexpr"
)

const (
	every     = 15 * time.Second
	timeout   = 5 * time.Second // of one evaluation, also at the server
	maxAnswer = 64 << 10        // bytes
	atOnce    = 8
	maxFault  = 200 // bytes
)

var queryBound = fairshare.Declare(fairshare.Bound{
	Resource: "expressions that wait for their evaluation in a cluster", Total: autoscale.MaxExpressions, Share: []int{autoscale.MaxTenantExpressions}, Per: "topmost tenant",
	Beyond: "the value is unknown, and unknown stops nothing; 8 are evaluated at the same time, one of each topmost tenant",
	Attack: "TestSlowExpressionsOfATenantDelayNobodyElse",
})

// Options configure an Evaluator.
type Options struct {
	URL   string              // of the server, with its path prefix
	Label string              // whose value is the tenant in all series
	Post  func(cluster.Input) // must not block
	Log   *slog.Logger
	Every time.Duration // of each expression; 0: 15 s
}

// Evaluator evaluates expressions. It is safe for concurrent use.
type Evaluator struct {
	opt     Options
	client  http.Client
	turns   *fairshare.Turns
	changed chan struct{}

	mu     sync.Mutex // guards wanted
	wanted map[api.ServiceID]string
}

// New returns an Evaluator without expressions.
func New(o Options) *Evaluator {
	o.Log, o.Every = cmp.Or(o.Log, slog.Default()), cmp.Or(o.Every, every)
	return &Evaluator{
		opt: o, turns: fairshare.NewTurns(queryBound, atOnce, 1), changed: make(chan struct{}, 1), wanted: map[api.ServiceID]string{},
		client: http.Client{
			Timeout:       timeout,
			Transport:     &http.Transport{MaxIdleConnsPerHost: atOnce, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 16 << 10},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Set replaces the expressions that are evaluated.
func (e *Evaluator) Set(all autoscale.Queries) {
	e.mu.Lock()
	e.wanted = all
	e.mu.Unlock()
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// Run evaluates until ctx ends.
func (e *Evaluator) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer e.client.CloseIdleConnections()
	type run struct {
		query string
		stop  context.CancelFunc
	}
	runs := map[api.ServiceID]run{}
	defer func() {
		for _, r := range runs {
			r.stop()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.changed:
		}
		e.mu.Lock()
		wanted := e.wanted
		e.mu.Unlock()
		for id, r := range runs {
			if wanted[id] != r.query {
				r.stop()
				delete(runs, id)
			}
		}
		for id, query := range wanted {
			if _, has := runs[id]; has {
				continue
			}
			ctx, stop := context.WithCancel(ctx)
			runs[id] = run{query, stop}
			wg.Go(func() { e.repeat(ctx, id, query) })
		}
	}
}

func (e *Evaluator) repeat(ctx context.Context, id api.ServiceID, query string) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		v, err := e.evaluate(ctx, id, query)
		if ctx.Err() != nil {
			return
		}
		in := cluster.Queried{Service: id, Query: query, Value: v}
		if err != nil {
			text := strings.ToValidUTF8(err.Error(), "?")
			in.Value, in.Fault = 0, text[:min(len(text), maxFault)]
			e.opt.Log.Debug("evaluate an expression failed", "service", id, "err", err)
		}
		e.opt.Post(in)
		timer.Reset(e.opt.Every)
	}
}

func (e *Evaluator) evaluate(ctx context.Context, id api.ServiceID, query string) (float64, error) {
	only, err := promexpr.Restrict(query, e.opt.Label, id.Tenant())
	if err != nil {
		return 0, err
	}
	leave, err := e.turns.Enter(ctx, time.Now(), []string{string(id.Tenant().Top())}, false)
	if err != nil {
		return 0, err
	}
	defer leave()
	form := url.Values{"query": {only}, "timeout": {timeout.String()}, "limit": {"2"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(e.opt.URL, "/")+"/api/v1/query", strings.NewReader(form.Encode()))
	if err != nil {
		return 0, errors.New("the URL of the Prometheus server is not valid")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := e.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the operator's address
		}
		return 0, fmt.Errorf("ask the Prometheus server: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return 0, fmt.Errorf("read the answer of the Prometheus server: %w", err)
	case len(body) > maxAnswer:
		return 0, fmt.Errorf("the answer of the Prometheus server has more than %d KiB", maxAnswer>>10)
	}
	return number(resp.StatusCode, body)
}

// number returns the value in an answer: a scalar, or the only sample of a vector.
func number(status int, body []byte) (float64, error) {
	var a struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &a); err != nil || a.Status == "" {
		return 0, fmt.Errorf("the Prometheus server answers with status %d", status)
	}
	if a.Status != "success" {
		return 0, fmt.Errorf("the Prometheus server refuses the expression: %s", a.Error)
	}
	var sample [2]any
	switch a.Data.ResultType {
	case "scalar":
		if err := json.Unmarshal(a.Data.Result, &sample); err != nil {
			return 0, fmt.Errorf("decode a scalar: %w", err)
		}
	case "vector":
		var all []struct{ Value [2]any }
		if err := json.Unmarshal(a.Data.Result, &all); err != nil {
			return 0, fmt.Errorf("decode a vector: %w", err)
		}
		if len(all) == 0 {
			return 0, errors.New("the expression has no value: no series of the tenant matches")
		}
		if len(all) > 1 {
			return 0, errors.New("the expression has several values; aggregate them, for example with sum()")
		}
		sample = all[0].Value
	default:
		return 0, fmt.Errorf("the expression is a %.20s, not one number", a.Data.ResultType)
	}
	text, _ := sample[1].(string)
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("the value of the expression is %.20q, not a number", text)
	}
	return v, nil
}
