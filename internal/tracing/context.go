// Package tracing follows one application from a person's command to the start of its containers, as an
// OpenTelemetry trace across root, clusters and nodes. It is off unless OTEL_EXPORTER_OTLP_ENDPOINT is set.
//
// A tier passes the context of a trace on with the desired state (W3C traceparent). It is no part of the state:
// cores do not see it, no store has it, and what is lost is the trace only.
//
//	t, err := tracing.FromEnv("treeline-root", os.Getenv, log) // nil: off
//	r := tracing.NewRelay(t)
//	r.Remember(now, tenant, key, parent)                       // what came from above
//	text := r.Pass(now, key, span)                             // what goes below, after a span of this tier
package tracing

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Context names one span of a trace. The zero value is no trace.
type Context struct {
	trace [16]byte
	span  [8]byte
}

// New returns the context of the first span of a new trace.
func New() (c Context) {
	_, _ = rand.Read(c.trace[:]) // never fails
	_, _ = rand.Read(c.span[:])
	return c
}

// Parse returns the context in a traceparent header. It is the zero value if the text is not one of version
// 00, or if its sender does not want spans.
func Parse(traceparent string) (c Context) {
	parts := strings.Split(traceparent, "-")
	if len(traceparent) != 55 || len(parts) != 4 || parts[0] != "00" || len(parts[1]) != 32 || len(parts[2]) != 16 || strings.ToLower(traceparent) != traceparent {
		return Context{}
	}
	trace, err1 := hex.DecodeString(parts[1])
	span, err2 := hex.DecodeString(parts[2])
	flags, err3 := hex.DecodeString(parts[3])
	if err1 != nil || err2 != nil || err3 != nil || flags[0]&1 == 0 {
		return Context{}
	}
	copy(c.trace[:], trace)
	copy(c.span[:], span)
	if c.trace == [16]byte{} || c.span == [8]byte{} {
		return Context{}
	}
	return c
}

// Trace returns the id of the trace in hexadecimal.
func (c Context) Trace() string { return hex.EncodeToString(c.trace[:]) }

// IsZero reports whether there is no trace.
func (c Context) IsZero() bool { return c == Context{} }

// String returns the traceparent; "" if there is no trace.
func (c Context) String() string {
	if c.IsZero() {
		return ""
	}
	return "00-" + hex.EncodeToString(c.trace[:]) + "-" + hex.EncodeToString(c.span[:]) + "-01"
}

// Child returns the context of a span within c. The same parts have the same context, so that what is sent
// again continues the same span.
func (c Context) Child(parts ...string) Context {
	if c.IsZero() {
		return c
	}
	sum := sha256.Sum256([]byte(c.String() + "\x00" + strings.Join(parts, "\x00")))
	copy(c.span[:], sum[:])
	c.span[0] |= 1 // never zero
	return c
}
