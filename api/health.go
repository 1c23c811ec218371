package api

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Health has the health checks of a service. The node runs them, also without its cluster.
type Health struct {
	None      bool   `json:"none,omitempty"`      // the image's HEALTHCHECK is ignored
	Startup   *Check `json:"startup,omitempty"`   // until it has passed, the others wait; its failure restarts
	Readiness *Check `json:"readiness,omitempty"` // decides whether an instance gets flows
	Liveness  *Check `json:"liveness,omitempty"`  // its failure restarts
}

// Check is one health check. Exactly one of HTTP, TCP, GRPC and Command is set. It connects to the
// workload's own address. Zero numbers mean the defaults, see CheckKind.
type Check struct {
	HTTP    *HTTPCheck `json:"http,omitempty"`
	TCP     *TCPCheck  `json:"tcp,omitempty"`
	GRPC    *GRPCCheck `json:"grpc,omitempty"`
	Command []string   `json:"command,omitempty"` // in the workload; passes with exit code 0

	Interval     int `json:"interval,omitempty"`      // s, between the beginnings of two checks
	Timeout      int `json:"timeout,omitempty"`       // s
	InitialDelay int `json:"initial_delay,omitempty"` // s, from the start of the workload
	Successes    int `json:"successes,omitempty"`     // in a row until it passes; of liveness 1
	Failures     int `json:"failures,omitempty"`      // in a row until it fails
}

// HTTPCheck sends a GET request. It passes if the status is in Status. Redirects are not followed.
type HTTPCheck struct {
	Port    int      `json:"port"`
	Path    string   `json:"path,omitempty"`    // default "/"
	Scheme  string   `json:"scheme,omitempty"`  // "http", the default, or "https", without verification
	Headers []string `json:"headers,omitempty"` // "Name: value"
	Status  string   `json:"status,omitempty"`  // "200" or "200-399", the default
}

// TCPCheck passes if the port accepts a connection.
type TCPCheck struct {
	Port int `json:"port"`
}

// GRPCCheck calls grpc.health.v1.Health/Check. It passes if the answer is SERVING.
type GRPCCheck struct {
	Port    int    `json:"port"`
	Service string `json:"service,omitempty"`
}

// CheckKind is the purpose of a health check.
type CheckKind string

// The kinds of health checks.
const (
	CheckStartup   CheckKind = "startup"
	CheckReadiness CheckKind = "readiness"
	CheckLiveness  CheckKind = "liveness"
)

// The defaults and bounds of health checks.
const (
	DefaultCheckInterval   = 10 // s
	DefaultCheckTimeout    = 3  // s
	DefaultCheckSuccesses  = 1
	DefaultCheckFailures   = 3
	DefaultStartupFailures = 30

	MaxCheckInterval  = 3600 // s
	MaxCheckTimeout   = 60   // s; a check occupies one of the node's workers so long
	MaxCheckDelay     = 3600 // s
	MaxCheckSuccesses = 10
	MaxCheckFailures  = 1000
	MaxCheckHeaders   = 16
	MaxCheckCommand   = 64 // arguments
	// MinCommandInterval is the shortest interval of commands, in seconds: to start a process in a
	// container takes the node far more processor time than a request.
	MinCommandInterval = 5

	defaultCheckStatus = "200-399"
)

// WithDefaults returns the check with the defaults of its kind instead of zero values.
func (c Check) WithDefaults(kind CheckKind) Check {
	failures := DefaultCheckFailures
	if kind == CheckStartup {
		failures = DefaultStartupFailures
	}
	c.Interval = cmp.Or(c.Interval, DefaultCheckInterval)
	c.Timeout = cmp.Or(c.Timeout, DefaultCheckTimeout)
	c.Successes = cmp.Or(c.Successes, DefaultCheckSuccesses)
	c.Failures = cmp.Or(c.Failures, failures)
	if h := c.HTTP; h != nil {
		full := *h
		full.Path, full.Scheme, full.Status = cmp.Or(h.Path, "/"), cmp.Or(h.Scheme, "http"), cmp.Or(h.Status, defaultCheckStatus)
		c.HTTP = &full
	}
	return c
}

// Every returns the interval.
func (c Check) Every() time.Duration { return time.Duration(c.Interval) * time.Second }

// Port returns the port that the check connects to; 0 for a command.
func (c Check) Port() int {
	switch {
	case c.HTTP != nil:
		return c.HTTP.Port
	case c.TCP != nil:
		return c.TCP.Port
	case c.GRPC != nil:
		return c.GRPC.Port
	}
	return 0
}

// String returns what the check does, for people: "GET :8080/healthz".
func (c Check) String() string {
	switch {
	case c.HTTP != nil && c.HTTP.Scheme == "https":
		return fmt.Sprintf("GET https://:%d%s", c.HTTP.Port, cmp.Or(c.HTTP.Path, "/"))
	case c.HTTP != nil:
		return fmt.Sprintf("GET :%d%s", c.HTTP.Port, cmp.Or(c.HTTP.Path, "/"))
	case c.TCP != nil:
		return fmt.Sprintf("TCP :%d", c.TCP.Port)
	case c.GRPC != nil && c.GRPC.Service != "":
		return fmt.Sprintf("gRPC :%d %s", c.GRPC.Port, c.GRPC.Service)
	case c.GRPC != nil:
		return fmt.Sprintf("gRPC :%d", c.GRPC.Port)
	}
	const shown = 80
	s := strings.Join(c.Command, " ")
	if len(s) > shown {
		s = strings.ToValidUTF8(s[:shown], "") + "…"
	}
	return "command " + s
}

// StatusRange parses "200" or "200-399". ok is false for anything else.
func StatusRange(s string) (first, last int, ok bool) {
	a, b, two := strings.Cut(s, "-")
	if !two {
		b = a
	}
	first, err1 := strconv.Atoi(a)
	last, err2 := strconv.Atoi(b)
	return first, last, err1 == nil && err2 == nil && 100 <= first && first <= last && last <= 599
}

// Gates reports whether an instance gets no flows before a check has passed.
func (h *Health) Gates() bool { return h != nil && !h.None && (h.Startup != nil || h.Readiness != nil) }

// Empty reports whether there are no checks.
func (h *Health) Empty() bool { return len(h.checks()) == 0 }

func (h *Health) checks() []*Check {
	if h == nil || h.None {
		return nil
	}
	var out []*Check
	for _, c := range []*Check{h.Startup, h.Readiness, h.Liveness} {
		if c != nil {
			out = append(out, c)
		}
	}
	return out
}

// completeHealth removes what has no effect, so that equal checks are stored equally.
func (m *Microservice) completeHealth() {
	if m.Health == nil {
		return
	}
	for _, c := range []**Check{&m.Health.Startup, &m.Health.Readiness, &m.Health.Liveness} {
		switch k := *c; {
		case k == nil:
		case k.HTTP == nil && k.TCP == nil && k.GRPC == nil && len(k.Command) == 0:
			*c = nil // an empty object
		default:
			if k.Command = orNil(k.Command); k.HTTP != nil {
				k.HTTP.Headers = orNil(k.HTTP.Headers)
			}
		}
	}
	if *m.Health == (Health{}) {
		m.Health = nil
	}
}
