package usage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/inside"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

const (
	scrapeTime = 2 * time.Second
	// rateLasts is the age up to which a rate counts, if a later one cannot be measured.
	rateLasts = 3 * interval

	maxMetrics    = 1 << 20  // bytes of an answer
	maxMetricLine = 64 << 10 // bytes
	maxSeries     = 1000     // of the counter
	maxRate       = 1 << 40  // thousandths of requests per second, as in internal/bounds
	maxFault      = 200      // bytes
)

var scrapeBound = fairshare.Declare(fairshare.Bound{
	Resource: "counters of requests that a node reads at the same time", Total: 16, Share: []int{4}, Per: "topmost tenant",
	Beyond: "it is read in the next round, 5 s later; meanwhile the rate is unknown, and unknown stops nothing",
	Attack: "TestAHangingCounterDelaysNobodyElse",
})

// rate is the rate of a workload's counter. Only the goroutine of Run uses it.
type rate struct {
	answer chan counted // of the read that is under way; nil: none is
	last   counted      // the last one that succeeded; zero time: none
	milli  int64        // thousandths per second
	at     time.Time    // of milli; zero: there is none
	fault  string       // of the last read
}

// counted is the result of a read.
type counted struct {
	at    time.Time
	total float64
	err   error
}

// take takes the result of a read that is over.
func (r *rate) take() {
	select {
	case c := <-r.answer:
		r.answer = nil
		r.add(c)
	default:
	}
}

func (r *rate) add(c counted) {
	if c.err != nil {
		text := strings.ToValidUTF8(c.err.Error(), "?")
		r.fault = text[:min(len(text), maxFault)]
		return
	}
	was := r.last
	r.last, r.fault = c, ""
	if was.at.IsZero() || !c.at.After(was.at) {
		return
	}
	grown := c.total - was.total
	if grown < 0 { // it began anew, as a restart does
		grown = c.total
	}
	r.milli, r.at = int64(min(1000*grown/c.at.Sub(was.at).Seconds(), maxRate)), c.at
}

// usage adds the rate to what is reported; -1: unknown.
func (r *rate) usage(now time.Time, u *wire.InstanceUsage) {
	u.Requests, u.Fault = -1, r.fault
	if !r.at.IsZero() && now.Sub(r.at) <= rateLasts {
		u.Requests = r.milli
	}
}

// count begins to read the counter of a workload, unless that is under way.
func (m *Meter) count(ctx context.Context, k wire.Key, g goal, r *rate) {
	if r.take(); r.answer != nil {
		return
	}
	place, err := m.scrapes.Take(time.Now(), []string{string(k.Instance.Tenant().Top())}, nil)
	if err != nil {
		r.fault = "too many counters of the tenant are read on this node at the same time"
		return
	}
	answer := make(chan counted, 1)
	r.answer = answer
	m.reads.Go(func() {
		defer place.Release()
		ctx, cancel := context.WithTimeout(ctx, scrapeTime)
		defer cancel()
		total, err := m.read(ctx, k, g)
		if err != nil {
			err = fmt.Errorf("read counter %s at port %d%s: %w", g.requests.Counter, g.requests.Port, g.requests.At(), err)
		}
		answer <- counted{time.Now(), total, err}
	})
}

// read returns the present value of a workload's counter.
func (m *Meter) read(ctx context.Context, k wire.Key, g goal) (float64, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return m.connect(ctx, k, g) }
	c := http.Client{
		Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://treeline-metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	req.URL.Opaque = g.requests.At() // as it is written
	req.Host = "localhost"
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	resp, err := c.Do(req)
	if err != nil {
		if u := errors.Unwrap(err); u != nil {
			err = u // without the made-up address
		}
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d", resp.StatusCode)
	}
	return sum(resp.Body, g.requests.Counter)
}

// dial connects to a workload within its network namespace.
func (m *Meter) dial(ctx context.Context, k wire.Key, g goal) (net.Conn, error) {
	n := m.opt.Runtime.(runtime.Namespaced)
	path, _, err := n.Namespace(ctx, k)
	if err != nil || path == "" {
		return nil, errors.Join(errors.New("the workload has no network namespace now"), err)
	}
	ns, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if again, _, err := n.Namespace(ctx, k); err != nil || again != path { // it ended, and path may be that of another process
		return nil, errors.Join(errors.New("the workload has ended"), err)
	}
	fd, err := m.sockets.Create(ns)
	if err != nil {
		return nil, err
	}
	at := g.address
	if !at.Is4() {
		at = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	f, err := inside.Connect(ctx, fd, at, g.requests.Port, "counter of "+string(k.Instance))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FileConn(f)
}

// sum adds up the series of a counter in the text format of Prometheus. It parses only lines of this
// counter, because a workload decides how much else it exposes.
func sum(r io.Reader, name string) (total float64, err error) {
	limit := &io.LimitedReader{R: r, N: maxMetrics + 1}
	lines := bufio.NewScanner(limit)
	lines.Buffer(nil, maxMetricLine)
	var kept bytes.Buffer
	series := 0
	for lines.Scan() {
		line := lines.Bytes()
		typed := bytes.HasPrefix(line, []byte("# TYPE "+name+" "))
		if rest, ok := bytes.CutPrefix(line, []byte(name)); typed || ok && len(rest) > 0 && strings.IndexByte("{ \t", rest[0]) >= 0 {
			if !typed {
				series++
			}
			kept.Write(line)
			kept.WriteByte('\n')
		}
		if series > maxSeries {
			return 0, fmt.Errorf("more than %d series", maxSeries)
		}
	}
	switch err := lines.Err(); {
	case err != nil:
		return 0, err
	case limit.N <= 0:
		return 0, fmt.Errorf("more than %d KiB of metrics", maxMetrics>>10)
	case series == 0:
		return 0, errors.New("there is no such counter")
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(&kept)
	if err != nil {
		return 0, err
	}
	f := families[name]
	if t := f.GetType().String(); t != "COUNTER" && t != "UNTYPED" {
		return 0, fmt.Errorf("it is a %s", strings.ToLower(t))
	}
	for _, x := range f.GetMetric() {
		v := x.GetUntyped().GetValue() + x.GetCounter().GetValue()
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return 0, fmt.Errorf("its value is %g", v)
		}
		total += v
	}
	if math.IsInf(total, 0) {
		return 0, errors.New("its values are too large")
	}
	return total, nil
}

// goal is what is measured of a workload beyond its control group and its connections.
type goal struct {
	requests *api.RequestGoal // nil: no requests
	address  netip.Addr       // on the overlay network; zero: localhost
}
