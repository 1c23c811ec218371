package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// renewEarly is how long before its expiry a stream is renewed. It is shorter than the
// time before expiry at which a session renews its access token.
const renewEarly = 15 * time.Second

// renewLeast is the least time between two attempts to renew a stream.
const renewLeast = 100 * time.Millisecond

// renewed returns the body of a stream that renews itself with a fresh token before the
// token that opened it expires. It ends with the last token if there is no fresher one.
// began is the time of the request: counted from there, no token outlives its expiry.
func (c *Client) renewed(ctx context.Context, began time.Time, resp *http.Response) io.ReadCloser {
	name := resp.Header.Get("Treeline-Stream")
	life, err := strconv.ParseFloat(resp.Header.Get("Treeline-Stream-Life"), 64)
	if name == "" || err != nil {
		return resp.Body
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	r := &renewing{ReadCloser: resp.Body, stop: func() { cancel(); <-done }}
	ends := began.Add(seconds(life))
	r.ends.Store(&ends)
	go func() {
		defer close(done)
		for {
			left := time.Until(ends)
			if left < renewLeast {
				return
			}
			select {
			case <-time.After(max(left-renewEarly, left/2)):
			case <-ctx.Done():
				return
			}
			var out struct {
				Life float64 `json:"life_seconds"`
			}
			began := time.Now()
			_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/streams/" + url.PathEscape(name)}, &out)
			later := began.Add(seconds(out.Life))
			switch {
			case err != nil && passing(err):
				continue
			case err != nil || later.Sub(ends) < renewLeast:
				return // no fresher token: the stream ends with this one
			}
			ends = later
			r.ends.Store(&later)
		}
	}()
	return r
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

type renewing struct {
	io.ReadCloser
	ends atomic.Pointer[time.Time] // of the right to the stream
	stop func()
}

// errExpired says why a stream broke off.
var errExpired = fmt.Errorf("the token expired that it was read with, and there was no fresher one: %w", api.ErrUnauthenticated)

// Read is io.Reader's. A stream that ended with its right is ErrUnauthenticated.
func (r *renewing) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	if err != nil && !errors.Is(err, io.EOF) && time.Until(*r.ends.Load()) < renewLeast {
		err = errExpired
	}
	return n, err
}

// Close is io.Closer's.
func (r *renewing) Close() error {
	r.stop()
	return r.ReadCloser.Close()
}
