package usage

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestSeriesOfACounterAreAddedUp(t *testing.T) {
	for text, want := range map[string]string{
		"# TYPE hits counter\nhits{code=\"200\"} 40\nhits{code=\"500\"} 2 1700000000000\nhits_total 9\n": "42",
		"other{x=\"a b\"} 1\nhits 7\n": "7",
		"hits\t1.5e3\n":                "1500",
		"":                             "no such counter",
		"hit 1\nhitsmore 2\n":          "no such counter",
		"# TYPE hits gauge\nhits 7\n":  "it is a gauge",
		"# TYPE hits histogram\nhits_bucket{le=\"1\"} 7\nhits 1\n": "it is a histogram",
		"hits NaN\n":                          "its value is NaN",
		"hits -1\n":                           "its value is -1",
		"hits +Inf\n":                         "its value is +Inf",
		"hits 1e308\nhits{a=\"b\"} 1.7e308\n": "too large",
		"hits x\n":                            "float",
		"hits{ 1\n":                           "",
		"hits{a=\"" + strings.Repeat("x", maxMetricLine) + "\"} 1\n": "token too long",
		strings.Repeat("other 1\n", maxMetrics/8+1) + "hits 1\n":     "KiB of metrics",
		strings.Repeat("hits{a=\"b\"} 1\n", maxSeries+1):             "more than 1000 series",
		strings.Repeat("hits{a=\"b\"} 1\n", maxSeries):               "same name and label values",
	} {
		total, err := sum(strings.NewReader(text), "hits")
		got := fmt.Sprint(total)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) && !(strings.HasPrefix(want, "same name") && total == maxSeries) || want == "" && err == nil {
			t.Errorf("%.60q gives %s, want %s", text, got, want)
		}
	}
}

func FuzzCounter(f *testing.F) {
	f.Add("# TYPE hits counter\nhits{a=\"b\\\"\"} 1 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		if total, err := sum(strings.NewReader(text), "hits"); err == nil && (total < 0 || math.IsNaN(total) || math.IsInf(total, 0)) {
			t.Errorf("%q gives %g", text, total)
		}
	})
}

func TestACounterThatBeginsAnewIsNoNegativeRate(t *testing.T) {
	now := time.Unix(1000, 0)
	var r rate
	for _, c := range []struct {
		after time.Duration
		total float64
		err   error
		want  int64
		fault string
	}{
		{0, 100, nil, -1, ""}, // one value is no rate
		{5 * time.Second, 150, nil, 10_000, ""},
		{5 * time.Second, 20, nil, 4_000, ""}, // it restarted
		{5 * time.Second, 0, fmt.Errorf("refused"), 4_000, "refused"},
		{5 * time.Second, 0, fmt.Errorf("refused"), 4_000, "refused"},
		{6 * time.Second, 0, fmt.Errorf("refused"), -1, "refused"},
		{4 * time.Second, 220, nil, 10_000, ""}, // since the last value
		{5 * time.Second, 1e300, nil, maxRate, ""},
		{0, 1e301, nil, maxRate, ""},
	} {
		now = now.Add(c.after)
		r.add(counted{now, c.total, c.err})
		var u wire.InstanceUsage
		if r.usage(now, &u); u.Requests != c.want || u.Fault != c.fault {
			t.Errorf("after %s with %g, %v: %d (%s), want %d (%s)", c.after, c.total, c.err, u.Requests, u.Fault, c.want, c.fault)
		}
	}
}

// A counter that answers slowly, endlessly or elsewhere keeps nobody else from being read.
func TestAHangingCounterDelaysNobodyElse(t *testing.T) {
	hangs := make(chan struct{})
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			t.Errorf("request for %s", r.URL)
		}
		fmt.Fprint(w, "hits 5\n")
	}))
	defer good.Close()
	bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		select {
		case <-hangs:
		case <-r.Context().Done():
		}
	}))
	defer bad.Close()
	defer close(hangs)
	moved := httptest.NewServer(http.RedirectHandler("http://169.254.169.254/", http.StatusFound))
	defer moved.Close()
	m := New(Options{})
	m.connect = func(ctx context.Context, k wire.Key, _ goal) (net.Conn, error) {
		at := map[api.Tenant]*httptest.Server{"acme": good, "hostile": bad, "moved": moved}[k.Instance.Tenant().Top()]
		return (&net.Dialer{}).DialContext(ctx, "tcp", at.Listener.Addr().String())
	}
	g := goal{requests: &api.RequestGoal{Port: 80, Counter: "hits", Target: 1}}
	key := func(tenant string, n int) wire.Key {
		return wire.Key{Instance: api.InstanceID(fmt.Sprintf("%s/team%d/a.n.s.n#0", tenant, n)), Epoch: 1}
	}
	busy := 0
	for n := range 100 {
		var r rate
		if m.count(t.Context(), key("hostile", n), g, &r); r.answer != nil {
			busy++
		}
	}
	if busy != scrapeBound.Share[0] {
		t.Errorf("%d counters of a tenant are read at the same time, want %d", busy, scrapeBound.Share[0])
	}
	var r, elsewhere rate
	m.count(t.Context(), key("acme", 0), g, &r)
	if c := <-r.answer; c.err != nil || c.total != 5 {
		t.Errorf("another tenant's counter: %+v", c)
	}
	m.count(t.Context(), key("moved", 0), g, &elsewhere)
	if c := <-elsewhere.answer; c.err == nil || !strings.Contains(c.err.Error(), "status 302") {
		t.Errorf("a redirect: %+v", c)
	}
}
