// Package promexpr checks Prometheus expressions of tenants, and restricts them to a tenant's series.
// It adapts Prometheus' own parser.
package promexpr

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/treeline-edge/treeline/api"
)

// Limits of an expression, because a Prometheus server evaluates it for all tenants.
const (
	MaxSelectors = 8
	MaxRange     = time.Hour // of a range and of an offset
)

// promQL has none of the experimental features: some select series by other means than selectors.
var promQL = parser.NewParser(parser.Options{})

// Restrict returns the expression with the matcher label="tenant" in every selector, so that it can only
// read series of that tenant. A matcher of the expression on the same label applies as well.
func Restrict(expression, label string, tenant api.Tenant) (string, error) {
	e, err := parse(expression)
	if err != nil {
		return "", err
	}
	only, err := labels.NewMatcher(labels.MatchEqual, label, string(tenant))
	if err != nil {
		return "", fmt.Errorf("match label %s: %w", label, err)
	}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			s.LabelMatchers = append(s.LabelMatchers, only)
		}
		return nil
	})
	return e.String(), nil
}

// parse parses an expression and checks its limits.
func parse(expression string) (parser.Expr, error) {
	if len(expression) > api.MaxExpression {
		return nil, fmt.Errorf("the expression has %d bytes, at most %d are allowed", len(expression), api.MaxExpression)
	}
	e, err := promQL.ParseExpr(expression)
	if err != nil {
		return nil, fmt.Errorf("the expression cannot be parsed: %s", strings.ToValidUTF8(err.Error(), "?"))
	}
	if t := e.Type(); t != parser.ValueTypeScalar && t != parser.ValueTypeVector {
		return nil, fmt.Errorf("the expression is a %s, but must be one number", parser.DocumentedType(t))
	}
	var fault error
	selectors := 0
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.SubqueryExpr:
			fault = fmt.Errorf("%s is a subquery, which is not allowed", n)
		case *parser.MatrixSelector:
			if n.Range > MaxRange {
				fault = fmt.Errorf("%s has a range of more than %s", n, MaxRange)
			}
		case *parser.VectorSelector:
			if selectors++; selectors > MaxSelectors {
				fault = fmt.Errorf("the expression has more than %d selectors", MaxSelectors)
			}
			switch {
			case n.Timestamp != nil || n.StartOrEnd != 0:
				fault = fmt.Errorf("%s has a time (@), which is not allowed", n)
			case n.OriginalOffset.Abs() > MaxRange:
				fault = fmt.Errorf("%s has an offset of more than %s", n, MaxRange)
			}
		}
		return fault
	})
	if fault != nil {
		return nil, fault
	}
	return e, nil
}

// Check refuses a parsed SLA with an expression that Restrict refuses. The error is a *api.Faults, as of
// api.ParseSLA.
func Check(sla api.SLA) error {
	faults := &api.Faults{}
	for i, a := range sla.Applications {
		for k, m := range a.Services {
			if m.Scale == nil || m.Scale.Prometheus == nil {
				continue
			}
			if _, err := parse(m.Scale.Prometheus.Query); err != nil {
				faults.Faults = append(faults.Faults, api.Fault{
					Pointer: fmt.Sprintf("/applications/%d/microservices/%d/scale/prometheus/query", i, k), Field: "query", Message: err.Error(),
					Fix: fmt.Sprintf("PromQL whose value is one number, such as sum(rate(http_requests_total[1m])), with at most %d selectors, ranges and offsets up to %s, and without subqueries", MaxSelectors, MaxRange),
				})
			}
		}
	}
	if len(faults.Faults) == 0 {
		return nil
	}
	return faults
}
