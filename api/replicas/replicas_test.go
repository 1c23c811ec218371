package replicas_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api/replicas"
)

const a, b, c = "https://a:1", "https://b:2", "https://c:3"

// servers behave as their hosts' entries say: refuse (no connection), reset (the connection breaks before
// the answer), standby, or serve.
type servers struct {
	does  map[string]string
	asked []string // host, and the body that arrived
}

func (s *servers) RoundTrip(r *http.Request) (*http.Response, error) {
	host := "https://" + r.URL.Host
	does := s.does[host]
	seen := host + " " + does
	if does != "refuse" {
		httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
	}
	if r.Body != nil {
		text, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		seen += " " + string(text)
	}
	s.asked = append(s.asked, seen)
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(host)), Request: r}
	switch does {
	case "refuse", "reset":
		return nil, errors.New(does + " of " + host)
	case "standby":
		resp.StatusCode = http.StatusServiceUnavailable
		resp.Header.Set(replicas.Standby, "true")
	case "busy":
		resp.StatusCode = http.StatusServiceUnavailable
	}
	return resp, nil
}

func TestRequestsGoToTheReplicaThatServes(t *testing.T) {
	for name, tc := range map[string]struct {
		does     [3]string
		method   string
		header   string // is set
		stream   bool   // the body cannot be sent again
		served   string // by which; empty: the request fails
		asks     int
		notSent  bool
		standbys bool // the answer is a standby's
	}{
		"the first":                                {does: [3]string{"serve", "serve", "serve"}, method: "POST", served: a, asks: 1},
		"no connection":                            {does: [3]string{"refuse", "serve", "serve"}, method: "POST", served: b, asks: 2},
		"a standby":                                {does: [3]string{"standby", "refuse", "serve"}, method: "POST", served: c, asks: 3},
		"an overloaded server is no standby":       {does: [3]string{"busy", "serve", "serve"}, method: "GET", served: a, asks: 1},
		"a read is repeated":                       {does: [3]string{"reset", "serve", "serve"}, method: "GET", served: b, asks: 2},
		"a write that may be executed is not":      {does: [3]string{"reset", "serve", "serve"}, method: "POST", asks: 1},
		"nor after a standby":                      {does: [3]string{"standby", "reset", "serve"}, method: "PUT", asks: 2},
		"a write with a key is repeated":           {does: [3]string{"reset", "serve", "serve"}, method: "POST", header: "Idempotency-Key", served: b, asks: 2},
		"an exec is not repeated":                  {does: [3]string{"reset", "serve", "serve"}, method: "GET", header: "Upgrade", asks: 1},
		"a body that is a stream is sent once":     {does: [3]string{"refuse", "serve", "serve"}, method: "POST", stream: true, asks: 1, notSent: true},
		"no server is reached":                     {does: [3]string{"refuse", "refuse", "refuse"}, method: "POST", asks: 3, notSent: true},
		"standbys only":                            {does: [3]string{"standby", "standby", "refuse"}, method: "POST", asks: 3, standbys: true},
		"a stream of which a standby says nothing": {does: [3]string{"standby", "serve", "serve"}, method: "POST", stream: true, asks: 1, standbys: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &servers{does: map[string]string{a: tc.does[0], b: tc.does[1], c: tc.does[2]}}
			addrs := replicas.New(a)
			addrs.Learn([]string{b, c})
			var body io.Reader = strings.NewReader("text")
			if tc.stream {
				body = io.MultiReader(body)
			}
			if tc.method == "GET" {
				body = nil
			}
			r, err := http.NewRequest(tc.method, "https://any/v1/x", body)
			if err != nil {
				t.Fatal(err)
			}
			if tc.header != "" {
				r.Header.Set(tc.header, "x")
			}
			resp, err := addrs.Transport(s, 0).RoundTrip(r)
			served := ""
			if err == nil && resp.Header.Get(replicas.Standby) == "" {
				text, _ := io.ReadAll(resp.Body)
				served = string(text)
			}
			if served != tc.served || len(s.asked) != tc.asks || replicas.NotSent(err) != tc.notSent || (err == nil && served == "") != tc.standbys {
				t.Errorf("served by %q after %q with the error %v (not sent: %t), want %+v", served, s.asked, err, replicas.NotSent(err), tc)
			}
			for _, seen := range s.asked {
				if body != nil && !strings.HasSuffix(seen, " text") {
					t.Errorf("%q: the body is not complete", seen)
				}
			}
			if tc.served != "" && addrs.Current() != tc.served {
				t.Errorf("the next request goes to %s first, want %s", addrs.Current(), tc.served)
			}
		})
	}
}

// While no replica is active, requests wait.
func TestRequestsWaitForATakeover(t *testing.T) {
	s := &servers{does: map[string]string{a: "refuse", b: "standby"}}
	asks := 0
	addrs := replicas.New(a, b)
	transport := addrs.Transport(roundTrip(func(r *http.Request) (*http.Response, error) {
		switch asks++; asks {
		case 3:
			s.does[b] = "refuse" // it closes its port to serve as the active one
		case 6:
			s.does[b] = "serve"
		}
		return s.RoundTrip(r)
	}), time.Minute)
	r, _ := http.NewRequest("POST", a, strings.NewReader("text"))
	resp, err := transport.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusOK || s.asked[len(s.asked)-1] != b+" serve text" {
		t.Errorf("%v, %v after %q, want an answer of %s", resp, err, s.asked, b)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A root that lies can send neither many addresses nor long ones, and none without TLS.
func TestAddressesAreBounded(t *testing.T) {
	bad := []string{"http://a:1", "https://", "https://u@a:1", "https://a:1/path", "https://a:1/", "https://a:1?q", "https://a:1?", "https://a:1#f", "https://" + strings.Repeat("a", 300), "a:1", "", "https://a\n:1"}
	if got := replicas.Clean(bad); len(got) != 0 {
		t.Errorf("%q are accepted", got)
	}
	var many []string
	for i := range 100 {
		many = append(many, a, "https://h"+strings.Repeat("x", i)+":1")
	}
	if got := replicas.Clean(many); len(got) > replicas.Max || len(got) < 2 || slices.Index(got, a) != 0 {
		t.Errorf("of %d addresses %d are accepted, want at most %d, each once", len(many), len(got), replicas.Max)
	}
	addrs := replicas.New(a, a+"/", c)
	if addrs.Learn(many[1:2]); !slices.Equal(addrs.All(), []string{a, many[1], c}) {
		t.Errorf("the addresses are %q", addrs.All())
	}
	if addrs.Learn(many[1:2]) || !addrs.Learn(nil) || !slices.Equal(addrs.All(), []string{a, c}) {
		t.Errorf("the addresses are %q after the server told none", addrs.All())
	}
}
