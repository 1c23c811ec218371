package tracing_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/tracing"
	"github.com/treeline-edge/treeline/internal/wire"
)

const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestOnlyAWholeTraceparentIsATrace(t *testing.T) {
	if c := tracing.Parse(good); c.String() != good {
		t.Errorf("%s is read as %s", good, c)
	}
	for _, bad := range []string{
		"", "00", good + "-00", good[:54], strings.ToUpper(good), strings.Replace(good, "00-", "ff-", 1), strings.Replace(good, "-01", "-00", 1),
		strings.Replace(good, "4bf9", "4bfz", 1), "00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", good[:36] + strings.Repeat("0", 16) + "-01",
		strings.Repeat("00-", 1<<16), strings.Replace(good, "-", "\x00", 1), good[:3] + "-" + good[4:],
	} {
		if c := tracing.Parse(bad); !c.IsZero() || c.String() != "" || !c.Child("x").IsZero() {
			t.Errorf("%.80q is read as %s, want no trace", bad, c)
		}
	}
}

// collector receives spans and counts them by name.
type collector struct {
	*httptest.Server
	mu    sync.Mutex // guards names
	names map[string]int
}

func newCollector(t *testing.T, answer int) *collector {
	c := &collector{names: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			ResourceSpans []struct {
				ScopeSpans []struct{ Spans []struct{ Name string } }
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("x-key") != "a b" {
			t.Errorf("%s %v: %v", r.URL.Path, r.Header, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range body.ResourceSpans[0].ScopeSpans[0].Spans {
			c.names[s.Name]++
		}
		w.WriteHeader(answer)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) tracer(t *testing.T) *tracing.Tracer {
	t.Helper()
	env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL + "/", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b"}
	tr, err := tracing.FromEnv("test", func(k string) string { return env[k] }, slog.New(slog.DiscardHandler))
	if err != nil || tr == nil {
		t.Fatal(tr, err)
	}
	return tr
}

func TestNothingIsExportedUnlessAskedFor(t *testing.T) {
	off, err := tracing.FromEnv("test", func(string) string { return "" }, nil)
	if off != nil || err != nil {
		t.Errorf("without an endpoint: %v, %v", off, err)
	}
	if _, err := tracing.FromEnv("test", func(string) string { return "ftp://x" }, nil); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("with a wrong endpoint: %v", err)
	}
	// A tier that exports nothing passes on what came from above.
	r := tracing.NewRelay(off)
	r.Remember("acme", "k", tracing.Parse(good))
	r.Step("k", "step", time.Now(), nil, nil)
	if got := r.Pass("k", "choose", nil); got.String() != good {
		t.Errorf("below goes %s, want %s", got, good)
	}
	var none *tracing.Relay
	none.Remember("acme", "k", tracing.Parse(good))
	a := wire.Assignment{Instance: "acme/shop.prod.web.v1#0", Trace: good}
	if d := none.Received(wire.Desired{Put: []wire.Assignment{a}}, tracing.OfApp); d.Put[0].Trace != "" || a.Trace == "" {
		t.Errorf("the core would get %+v, want the assignment without the trace", d.Put)
	}
}

// TestTracesOfOneTenantLeaveRoomForOthers: a tenant that asks for traces without end takes neither the memory of
// others' traces nor the export of their spans, and delays nothing.
func TestTracesOfOneTenantLeaveRoomForOthers(t *testing.T) {
	c := newCollector(t, http.StatusOK)
	tr := c.tracer(t)
	r := tracing.NewRelay(tr)
	r.Remember("quiet", "first", tracing.Parse(good))
	for i := range 10_000 {
		key := fmt.Sprint("loud ", i)
		r.Remember("loud/team", key, tracing.New())
		for range 3 { // repeated orders are one span
			r.Pass(key, "loud", nil, "x")
		}
	}
	if got := r.Pass("first", "quiet", nil, "x"); got.IsZero() || got.String() == good || got.Trace() != tracing.Parse(good).Trace() {
		t.Errorf("the trace of the other tenant goes on as %s, want another span of it", got)
	}
	if got := r.Pass("loud 0", "loud", nil, "x"); !got.IsZero() {
		t.Error("10,000 traces of one tenant are remembered")
	}
	tr.Flush(t.Context())
	c.mu.Lock()
	if c.names["quiet"] != 1 || c.names["loud"] == 0 || c.names["loud"] > 512 {
		t.Errorf("exported are %v, want the span of the quiet tenant and at most 512 of the other", c.names)
	}
	c.mu.Unlock()

	// What is exported makes room.
	tr.Emit(tracing.Span{Context: tracing.New(), Name: "later", Tenant: "loud"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tr.Run(ctx); err != nil {
		t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names["later"] != 1 {
		t.Errorf("exported are %v, want the later one, also at the end", c.names)
	}
}

// A collector that refuses or is away costs spans only.
func TestACollectorThatIsAwayDelaysNothing(t *testing.T) {
	c := newCollector(t, http.StatusServiceUnavailable)
	tr := c.tracer(t)
	tr.Emit(tracing.Span{Context: tracing.New(), Name: "refused"})
	tr.Flush(t.Context())
	c.Close()
	for range 5000 {
		tr.Emit(tracing.Span{Context: tracing.New(), Name: "lost", Err: errors.New("x")})
	}
	began := time.Now()
	tr.Flush(t.Context())
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the last export took %s", took)
	}
}

// Lines about what a trace caused have its id, at each tier by the keys that this tier has.
func TestLogLinesHaveTheIDOfTheirTrace(t *testing.T) {
	const web, other = api.InstanceID("acme/shop.prod.web.v1#0"), api.InstanceID("acme/shop.prod.web.v1#1")
	placed := api.EpochOf(7, 2)
	a := wire.Assignment{Instance: web, Epoch: placed, Trace: good}
	id := tracing.Parse(good).Trace()
	for tier, c := range map[string]struct {
		key   func(wire.Assignment) string
		about []any
		not   []any
	}{
		"root":    {tracing.OfApp, []any{"app", web.Service().App()}, []any{"app", api.AppID("acme/other.prod")}},
		"cluster": {tracing.OfPlacement, []any{"instance", web, "epoch", placed}, []any{"instance", web, "epoch", api.EpochOf(8, 0)}},
		"node":    {tracing.OfPlacementHere, []any{"instance", web, "epoch", placed}, []any{"instance", other, "epoch", placed}},
	} {
		var text strings.Builder
		r := tracing.NewRelay(nil)
		log := r.Logger(slog.New(slog.NewTextHandler(&text, nil)))
		line := func(log *slog.Logger, attributes ...any) string {
			text.Reset()
			log.Warn("x", attributes...)
			return text.String()
		}
		if got := line(log, c.about...); strings.Contains(got, "trace_id") {
			t.Errorf("%s: without a trace: %s", tier, got)
		}
		r.Received(wire.Desired{Put: []wire.Assignment{a}}, c.key)
		for what, got := range map[string]string{
			"attributes of the line":   line(log, c.about...),
			"attributes of the logger": line(log.With(c.about...).WithGroup("g"), "err", "y"),
		} {
			if strings.Count(got, "trace_id="+id) != 1 {
				t.Errorf("%s, %s: %q, want the trace %s", tier, what, got, id)
			}
		}
		for _, attributes := range [][]any{c.not, {"instance", "acme/shop.prod.web.v1#0 " + placed.String()}, {"err", "y"}, nil} {
			if got := line(log, attributes...); strings.Contains(got, "trace_id") {
				t.Errorf("%s: a line that is about something else has a trace: %s", tier, got)
			}
		}
		if got := line(log.With(c.about...), c.not...); strings.Contains(got, "trace_id") {
			t.Errorf("%s: a line that is about something else has a trace: %s", tier, got)
		}
	}
}
