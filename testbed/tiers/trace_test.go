package tiers

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// span is what a collector of OTLP gets.
type span struct {
	service, trace, id, parent, name, start, end string
	attributes                                   map[string]string
}

// collect serves OTLP over HTTP and returns what has been received.
func collect(t *testing.T) (url string, received func() []span) {
	var mu sync.Mutex
	var all []span
	type attribute struct {
		Key   string
		Value struct{ StringValue string }
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			ResourceSpans []struct {
				Resource   struct{ Attributes []attribute }
				ScopeSpans []struct {
					Spans []struct {
						TraceID, SpanID, ParentSpanID, Name string
						StartTimeUnixNano, EndTimeUnixNano  string
						Attributes                          []attribute
					}
				}
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("export to %s: %v", r.URL.Path, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, of := range body.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				for _, got := range scope.Spans {
					v := span{
						of.Resource.Attributes[0].Value.StringValue, got.TraceID, got.SpanID, got.ParentSpanID, got.Name,
						got.StartTimeUnixNano, got.EndTimeUnixNano,
						map[string]string{},
					}
					for _, a := range got.Attributes {
						v.attributes[a.Key] = a.Value.StringValue
					}
					all = append(all, v)
				}
			}
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []span {
		mu.Lock()
		defer mu.Unlock()
		return append([]span(nil), all...)
	}
}

// TestOneTraceFromTheCommandToTheStart: the spans of all tiers are one trace, from treeline apply to the start
// of each workload, each within the one of the tier above.
func TestOneTraceFromTheCommandToTheStart(t *testing.T) {
	url, received := collect(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
	c := openTerminal(t)
	c.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
	c.at.startNode(t, "n1")
	doc := strings.Replace(plain, `code: "web:1"`, `code: "web:1", replicas: 2`, 1)
	_, said, code := c.runWith(t.Context(), doc, "apply", "-f", "-", "--timeout", "3m")
	id := regexp.MustCompile(`(?m)^trace ([0-9a-f]{32})$`).FindStringSubmatch(said)
	if code != 0 || id == nil {
		t.Fatalf("apply: exit %d, %s; want the id of the trace", code, said)
	}
	chain := []string{
		"treeline-node start workload", "treeline-cluster choose node", "treeline-root choose cluster", "treeline-root apply", "treeline-cli treeline apply",
	}
	var all map[string]span
	complete := func(instance string) bool {
		for _, s := range all {
			if s.service+" "+s.name != chain[0] || s.attributes["treeline.instance"] != instance {
				continue
			}
			names := []string{}
			for {
				names = append(names, s.service+" "+s.name)
				above, ok := all[s.parent]
				if !ok {
					return s.parent == "" && strings.Join(names, ", ") == strings.Join(chain, ", ")
				}
				s = above
			}
		}
		return false
	}
	eventually(t, "there is one trace from the command to the start of both instances", func() bool {
		all = map[string]span{}
		for _, s := range received() {
			if s.trace == id[1] {
				all[s.id] = s
			}
		}
		return complete("acme/hello.prod.web.v1#0") && complete("acme/hello.prod.web.v1#1")
	})
	created := 0
	for _, s := range all {
		if s.name == "create workload" {
			created++
		}
		if len(s.start) != 19 || s.end < s.start {
			t.Errorf("span %s of %s is from %s to %s", s.name, s.service, s.start, s.end)
		}
		if s.name == "choose node" && (s.attributes["treeline.node"] != "n1" || s.attributes["treeline.cluster"] != "munich") {
			t.Errorf("the cluster's span has %v", s.attributes)
		}
	}
	if created != 2 {
		t.Errorf("%d workloads were created in the trace, want 2", created)
	}

	// A command of which nobody wants spans begins a trace at the root; a damaged traceparent does, too.
	delete(c.env, "OTEL_EXPORTER_OTLP_ENDPOINT")
	c.env["TRACEPARENT"] = "00-" + strings.Repeat("z", 32) + "-00f067aa0ba902b7-01"
	if _, said, code := c.runWith(t.Context(), strings.Replace(doc, "hello", "second", 1), "apply", "-f", "-", "--timeout", "3m"); code != 0 || strings.Contains(said, "trace ") {
		t.Errorf("apply without an endpoint: exit %d, %s", code, said)
	}
	eventually(t, "the second application has a trace of its own", func() bool {
		for _, s := range received() {
			if s.name == "start workload" && strings.HasPrefix(s.attributes["treeline.instance"], "acme/second.") {
				return s.trace != id[1]
			}
		}
		return false
	})
}
