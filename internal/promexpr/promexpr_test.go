package promexpr

import (
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/treeline-edge/treeline/api"
)

func TestEverySelectorIsRestricted(t *testing.T) {
	for in, want := range map[string]string{
		`up`: `up{tenant="acme"}`,
		`sum(rate(http_requests_total{job="web"}[1m]))`: `sum(rate(http_requests_total{job="web",tenant="acme"}[1m]))`,
		`up{tenant="other"}`:                            `up{tenant="acme",tenant="other"}`,
		`up{tenant=~".*"} or {__name__=~".+"}`:          `up{tenant="acme",tenant=~".*"} or {__name__=~".+",tenant="acme"}`,
		`label_replace(up, "tenant", "x", "", "") * on() group_left() max(up offset 5m)`: `label_replace(up{tenant="acme"}, "tenant", "x", "", "") * on () group_left () max(up{tenant="acme"} offset 5m)`,
		`absent(up) + scalar(up)`:           `absent(up{tenant="acme"}) + scalar(up{tenant="acme"})`,
		`quantile_over_time(0.9, lag[30m])`: `quantile_over_time(0.9, lag{tenant="acme"}[30m])`,
		`42`:                                `42`,
	} {
		if got, err := Restrict(in, "tenant", "acme"); err != nil || got != want {
			t.Errorf("%s becomes %s (%v), want %s", in, got, err, want)
		}
	}
}

func TestWhatIsRefused(t *testing.T) {
	for in, want := range map[string]string{
		`up[5m]`:                             "must be one number",
		`"text"`:                             "must be one number",
		`rate(up[2h])`:                       "range of more than",
		`up offset 2h`:                       "offset of more than",
		`up offset -2h`:                      "offset of more than",
		`max_over_time(rate(up[1m])[1h:1s])`: "subquery",
		`up @ 0`:                             "a time",
		`up @ start()`:                       "a time",
		`info(up)`:                           "cannot be parsed",
		`sum(`:                               "cannot be parsed",
		strings.Repeat("up+", 8) + "up":      "more than 8 selectors",
		strings.Repeat("(", 2000):            "bytes",
		``:                                   "cannot be parsed",
	} {
		sla := api.SLA{Applications: []api.Application{{Services: []api.Microservice{{}, {Scale: &api.Scale{Prometheus: &api.QueryGoal{Query: in, Target: 1}}}}}}}
		if err := Check(sla); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "/applications/0/microservices/1/scale/prometheus/query") {
			t.Errorf("%q: %v, want an error with %q", in, err, want)
		}
	}
}

// Whatever parses, every selector of what a Prometheus server gets is restricted.
func FuzzRestrict(f *testing.F) {
	f.Add(`sum by (x) (rate({a="b"}[5m])) / on (x) group_left up > bool 3`)
	f.Add(`up{"tenant"="other", tenant!="acme"}`)
	f.Fuzz(func(t *testing.T, in string) {
		out, err := Restrict(in, "tenant", `acme/te"am`)
		if err != nil {
			return
		}
		e, err := promQL.ParseExpr(out)
		if err != nil {
			t.Fatalf("%q becomes %q, which cannot be parsed: %v", in, out, err)
		}
		parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
			s, ok := n.(*parser.VectorSelector)
			if !ok {
				return nil
			}
			for _, m := range s.LabelMatchers {
				if m.Name == "tenant" && m.String() == `tenant="acme/te\"am"` {
					return nil
				}
			}
			t.Errorf("%q becomes %q: %s is not restricted", in, out, s)
			return nil
		})
	})
}
