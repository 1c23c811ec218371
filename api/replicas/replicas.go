// Package replicas sends requests to whichever of several replicas of a server serves them. It imports
// only the standard library.
//
//	addrs := replicas.New("https://10.0.0.5:7443")
//	addrs.Learn(session.Replicas)
//	c := &http.Client{Transport: addrs.Transport(transport, 10*time.Second)}
package replicas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Standby is the header by which a replica marks an answer 503 to a request of which it has executed
// nothing, because it is not the active one.
const Standby = "Treeline-Standby"

// Max is how many URLs a server may tell its clients, and maxURL how long each may be.
const (
	Max    = 8
	maxURL = 255
)

// pause is the mean time between two rounds through all replicas.
const pause = 250 * time.Millisecond

// Clean returns the valid ones (https://host:port) of the first Max URLs, each once.
func Clean(urls []string) []string {
	var out []string
	for _, text := range urls[:min(len(urls), Max)] {
		if _, ok := parse(text); ok && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

func parse(text string) (*url.URL, bool) {
	u, err := url.Parse(text)
	return u, err == nil && len(text) <= maxURL && u.Scheme == "https" && u.Hostname() != "" && u.User == nil && u.Path == "" && u.RawQuery == "" && u.Fragment == "" && !strings.HasSuffix(text, "#") && !strings.HasSuffix(text, "?")
}

// Addresses are the URLs of a server's replicas. It is safe for concurrent use.
type Addresses struct {
	mu      sync.Mutex // guards all below
	fixed   []string
	learned []string
	current string // the one that answered last; it is tried first
}

// New returns addresses of which the first is tried first.
func New(fixed ...string) *Addresses {
	a := &Addresses{}
	for _, u := range fixed {
		if u = strings.TrimSuffix(u, "/"); u != "" && !slices.Contains(a.fixed, u) {
			a.fixed = append(a.fixed, u)
		}
	}
	if len(a.fixed) > 0 {
		a.current = a.fixed[0]
	}
	return a
}

// Learn replaces the addresses that the server told earlier, and reports whether they changed. The
// caller has them from the server itself, whose certificate it has verified.
func (a *Addresses) Learn(urls []string) bool {
	urls = Clean(urls)
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Equal(a.learned, urls) {
		return false
	}
	a.learned = urls
	return true
}

// Current returns the URL of the replica that answered last.
func (a *Addresses) Current() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current
}

// All returns all URLs in the order in which they are tried.
func (a *Addresses) All() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for _, u := range slices.Concat([]string{a.current}, a.learned, a.fixed) {
		if u != "" && !slices.Contains(all, u) {
			all = append(all, u)
		}
	}
	return all
}

// Prefer makes u the first address that is tried.
func (a *Addresses) Prefer(u string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.current = u
}

// Transport returns a transport that sends each request to the replica that answered last, whatever
// the host in its URL. It sends a request to the next replica if
//
//   - no connection could be made,
//   - the replica answers that it is a standby (see Standby), or
//   - the connection broke before the answer, and the request may be repeated: it is a GET, HEAD or
//     OPTIONS that changes no protocol, or has an Idempotency-Key.
//
// A request whose body cannot be sent again (no GetBody) is sent once. If no replica serves, but one is a
// standby or there are several, one may be about to take over: the transport asks all of them again for up
// to wait, and then returns the answer of a standby or the error.
func (a *Addresses) Transport(base http.RoundTripper, wait time.Duration) http.RoundTripper {
	return &transport{a, base, wait}
}

type transport struct {
	addrs *Addresses
	base  http.RoundTripper
	wait  time.Duration
}

// CloseIdleConnections is for http.Client.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	again := r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
	first := true // the body of r is for the first attempt
	defer func() {
		if first && r.Body != nil {
			_ = r.Body.Close()
		}
	}()
	sent := false
	for end := time.Now().Add(t.wait); ; {
		var standby *http.Response
		var failed error
		all := t.addrs.All()
		for _, u := range all {
			resp, unsent, err := t.once(r, u, first)
			first = false
			if err == nil && resp.Header.Get(Standby) == "" {
				drop(standby)
				t.addrs.Prefer(u)
				return resp, nil
			}
			if err == nil {
				drop(standby)
				standby = resp
				unsent = true
			}
			switch {
			case failed == nil:
				failed = err
			case err != nil:
				failed = fmt.Errorf("%w; %s: %v", failed, u, err) //nolint:errorlint // the kind is that of the first error
			}
			sent = sent || !unsent
			if !again || r.Context().Err() != nil || !unsent && !repeatable(r) {
				if err != nil { // not the answer of an earlier one, which would say that nothing was executed
					drop(standby)
					return nil, failure(failed, sent)
				}
				return standby, nil
			}
		}
		if len(all) == 0 {
			failed = errors.New("no address of the server is known")
		}
		hope := standby != nil || len(all) > 1
		if !hope || time.Now().Add(pause).After(end) || !sleep(r.Context()) {
			if standby == nil {
				return nil, failure(failed, sent)
			}
			return standby, nil
		}
		drop(standby)
	}
}

// notSent is an error after which no replica can have executed the request.
type notSent struct{ error }

func (n notSent) Unwrap() error { return n.error }

func failure(err error, sent bool) error {
	if sent {
		return err
	}
	return notSent{err}
}

// NotSent reports whether the error of a transport means that no replica has received the request.
func NotSent(err error) bool {
	var n notSent
	return errors.As(err, &n)
}

// once sends the request to one replica. unsent reports that no part of it was sent.
func (t *transport) once(r *http.Request, to string, first bool) (resp *http.Response, unsent bool, err error) {
	u, ok := parse(to)
	if !ok {
		if first && r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, true, fmt.Errorf("address %q is not https://host:port", to)
	}
	var connected atomic.Bool
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	out := r.Clone(ctx)
	out.URL.Scheme, out.URL.Host, out.Host = u.Scheme, u.Host, u.Host
	if !first && r.GetBody != nil {
		if out.Body, err = r.GetBody(); err != nil {
			return nil, true, fmt.Errorf("repeat the request: %w", err)
		}
	}
	resp, err = t.base.RoundTrip(out)
	return resp, !connected.Load(), err
}

// repeatable reports whether a request may be executed twice. One that changes the protocol starts
// something, such as a command in a container.
func repeatable(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions:
		return r.Header.Get("Upgrade") == ""
	}
	return r.Header.Get("Idempotency-Key") != ""
}

func drop(resp *http.Response) {
	if resp != nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10)) // so that the connection is reused
		_ = resp.Body.Close()
	}
}

func sleep(ctx context.Context) bool {
	timer := time.NewTimer(pause/2 + rand.N(pause)) // clients spread
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
