package tracing

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
)

const (
	batch      = 512             // spans in one request
	pause      = time.Second     // between two requests
	sendTime   = 3 * time.Second // for one request
	flushTime  = 2 * time.Second // for the last one
	maxText    = 1024            // bytes of a name or an attribute
	warnPeriod = time.Minute
)

var spanPlaces = fairshare.Declare(fairshare.Bound{
	Resource: "spans that wait to be exported", Total: 2048, Share: []int{512}, Per: "topmost tenant",
	Beyond: "they are dropped; at most 512 are sent a second, whatever the traces of tenants ask for",
	Attack: "TestTracesOfOneTenantLeaveRoomForOthers",
})

// Kind is the kind of a span, as OTLP numbers it.
type Kind int

const (
	Internal Kind = 1
	Server   Kind = 2
	Client   Kind = 3
)

// Span is a step with its time.
type Span struct {
	Context
	Parent     Context // zero: the first span of the trace
	Name       string
	Kind       Kind
	Start, End time.Time
	Attributes map[string]string
	Err        error      // nil: it succeeded
	Tenant     api.Tenant // whom it counts for
}

// Tracer exports spans by OTLP over HTTP, as JSON. A nil Tracer drops them. It is safe for concurrent use.
type Tracer struct {
	service string
	to      string // URL
	header  http.Header
	http    *http.Client
	log     *slog.Logger

	places *fairshare.Pool
	filled chan struct{}

	mu      sync.Mutex // guards the fields below
	waiting []waiting
	dropped int
	warned  time.Time
}

type waiting struct {
	Span
	place *fairshare.Place
}

// FromEnv returns the tracer of a service that the standard variables of OpenTelemetry configure:
// OTEL_EXPORTER_OTLP_ENDPOINT, a URL to which /v1/traces is added, and OTEL_EXPORTER_OTLP_HEADERS. Without an
// endpoint it returns nil.
func FromEnv(service string, env func(string) string, log *slog.Logger) (*Tracer, error) {
	const name = "OTEL_EXPORTER_OTLP_ENDPOINT"
	to := env(name)
	if to == "" || strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%s is %q, want a URL such as http://127.0.0.1:4318: %w", name, to, api.ErrInvalid)
	}
	t := &Tracer{
		service: service, to: u.JoinPath("v1/traces").String(), header: http.Header{"Content-Type": {"application/json"}}, log: log,
		http:   &http.Client{Timeout: sendTime, Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: 2 * pause}},
		places: fairshare.NewPool(spanPlaces, fairshare.Policy{Fixed: true}), filled: make(chan struct{}, 1),
	}
	for pair := range strings.SplitSeq(env("OTEL_EXPORTER_OTLP_HEADERS"), ",") {
		if k, v, ok := strings.Cut(pair, "="); ok {
			if plain, err := url.QueryUnescape(v); err == nil {
				v = plain
			}
			t.header.Set(strings.TrimSpace(k), strings.TrimSpace(v))
		}
	}
	return t, nil
}

// Emit queues a span. It does not block.
func (t *Tracer) Emit(s Span) {
	if t == nil || s.IsZero() {
		return
	}
	place, err := t.places.Take(time.Now(), []string{string(s.Tenant.Top())}, nil)
	t.mu.Lock()
	if err != nil {
		t.dropped++
	} else {
		t.waiting = append(t.waiting, waiting{s, place})
	}
	t.mu.Unlock()
	select {
	case t.filled <- struct{}{}:
	default:
	}
}

// Run exports spans until ctx ends, and then those that wait. Without spans it does nothing.
func (t *Tracer) Run(ctx context.Context) error {
	if t == nil {
		<-ctx.Done()
		return nil
	}
	defer t.http.CloseIdleConnections()
	for {
		select {
		case <-ctx.Done():
		case <-t.filled:
		}
		if ctx.Err() != nil {
			t.Flush(context.WithoutCancel(ctx))
			return nil
		}
		// The end of ctx does not cut a request off, which would lose its spans.
		for ctx.Err() == nil && t.export(context.WithoutCancel(ctx)) {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}
}

// Flush exports the spans that wait.
func (t *Tracer) Flush(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	for ctx.Err() == nil && t.export(ctx) {
	}
	t.http.CloseIdleConnections()
}

// export sends one batch. It reports whether there was one.
func (t *Tracer) export(ctx context.Context) bool {
	t.mu.Lock()
	n := min(batch, len(t.waiting))
	spans := t.waiting[:n:n]
	t.waiting = append([]waiting(nil), t.waiting[n:]...)
	t.mu.Unlock()
	if n == 0 {
		return false
	}
	err := t.send(ctx, spans)
	for _, s := range spans {
		s.place.Release()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); (err != nil || t.dropped > 0) && now.Sub(t.warned) > warnPeriod {
		t.log.Warn("spans not exported", "to", t.to, "batch", n, "dropped", t.dropped, "err", err)
		t.warned, t.dropped = now, 0
	}
	return true
}

func (t *Tracer) send(ctx context.Context, spans []waiting) error {
	body, err := json.Marshal(t.encode(spans))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.to, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = t.header.Clone()
	resp, err := t.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode >= 300 {
		return fmt.Errorf("post spans: %s: %w", resp.Status, api.ErrUnavailable)
	}
	return nil
}

// The messages of OTLP/HTTP in JSON: ids in hexadecimal, 64-bit numbers as texts.
type (
	otlpRequest struct {
		Resources []otlpResource `json:"resourceSpans"`
	}
	otlpResource struct {
		Resource otlpAttributes `json:"resource"`
		Scopes   []otlpScope    `json:"scopeSpans"`
	}
	otlpAttributes struct {
		Attributes []otlpAttribute `json:"attributes"`
	}
	otlpAttribute struct {
		Key   string    `json:"key"`
		Value otlpValue `json:"value"`
	}
	otlpValue struct {
		Text string `json:"stringValue"`
	}
	otlpScope struct {
		Scope struct {
			Name string `json:"name"`
		} `json:"scope"`
		Spans []otlpSpan `json:"spans"`
	}
	otlpSpan struct {
		Trace      string          `json:"traceId"`
		Span       string          `json:"spanId"`
		Parent     string          `json:"parentSpanId,omitempty"`
		Name       string          `json:"name"`
		Kind       Kind            `json:"kind"`
		Start      string          `json:"startTimeUnixNano"`
		End        string          `json:"endTimeUnixNano"`
		Attributes []otlpAttribute `json:"attributes,omitempty"`
		Status     *otlpStatus     `json:"status,omitempty"`
	}
	otlpStatus struct {
		Code    int    `json:"code"` // 2: error
		Message string `json:"message"`
	}
)

func (t *Tracer) encode(spans []waiting) otlpRequest {
	scope := otlpScope{}
	scope.Scope.Name = "treeline"
	for _, s := range spans {
		o := otlpSpan{
			Trace: hex.EncodeToString(s.trace[:]), Span: hex.EncodeToString(s.span[:]), Name: short(s.Name), Kind: s.Kind,
			Start: strconv.FormatInt(s.Start.UnixNano(), 10), End: strconv.FormatInt(s.End.UnixNano(), 10), Attributes: attributes(s.Attributes),
		}
		if !s.Parent.IsZero() {
			o.Parent = hex.EncodeToString(s.Parent.span[:])
		}
		if s.Err != nil {
			o.Status = &otlpStatus{2, short(s.Err.Error())}
		}
		scope.Spans = append(scope.Spans, o)
	}
	of := otlpAttributes{attributes(map[string]string{"service.name": t.service})}
	return otlpRequest{[]otlpResource{{of, []otlpScope{scope}}}}
}

func attributes(all map[string]string) (out []otlpAttribute) {
	for k, v := range all {
		out = append(out, otlpAttribute{k, otlpValue{short(v)}})
	}
	return out
}

func short(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "") }
