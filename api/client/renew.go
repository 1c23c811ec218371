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

// renewEarly is how long before its expiry a stream is renewed. Sessions renew their access tokens
// earlier, so that a new token is available.
const renewEarly = 15 * time.Second

// minRenewal is the least time between two attempts to renew a stream.
const minRenewal = 100 * time.Millisecond

// stream opens a stream and renews it with a new token before the current one expires. If there is
// no newer token, the stream ends.
func (c *Client) stream(ctx context.Context, path string, q url.Values) (io.ReadCloser, error) {
	began := time.Now() // before the request, so that the lifetime is not overestimated
	resp, err := c.Raw(ctx, Request{Method: http.MethodGet, Path: path, Query: q})
	if err != nil {
		return nil, err
	}
	right := c.renew(ctx, began, resp.Header)
	if right == nil {
		return resp.Body, nil
	}
	return &renewing{resp.Body, right}, nil
}

// Right is the right to use an open stream, which is renewed until Close. The zero value and nil do not
// expire.
type Right struct {
	ends atomic.Pointer[time.Time]
	stop func()
}

// renew renews the right to the stream that was opened by a request with this answer. It returns nil if
// the right does not expire.
func (c *Client) renew(ctx context.Context, began time.Time, answer http.Header) *Right {
	name := answer.Get("Treeline-Stream")
	life, err := strconv.ParseFloat(answer.Get("Treeline-Stream-Life"), 64)
	if name == "" || err != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	r := &Right{stop: func() { cancel(); <-done }}
	ends := began.Add(seconds(life))
	r.ends.Store(&ends)
	go func() {
		defer close(done)
		for {
			left := time.Until(ends)
			if left < minRenewal {
				return
			}
			select {
			case <-time.After(max(left-renewEarly, left/2)):
			case <-ctx.Done():
				return
			}
			began := time.Now()
			out, err := send[struct {
				Life float64 `json:"life_seconds"`
			}](ctx, c, Request{Method: http.MethodPost, Path: "/v1/auth/streams/" + url.PathEscape(name)})
			later := began.Add(seconds(out.Life))
			switch {
			case err != nil && passing(err):
				continue
			case err != nil || later.Sub(ends) < minRenewal:
				return // no newer token: the stream ends with the current one
			}
			ends = later
			r.ends.Store(&later)
		}
	}()
	return r
}

// Expired reports whether the right has expired or is about to, so that the stream ended for it.
func (r *Right) Expired() bool {
	if r == nil {
		return false
	}
	ends := r.ends.Load()
	return ends != nil && time.Until(*ends) < minRenewal
}

// Close ends the renewal.
func (r *Right) Close() {
	if r != nil && r.stop != nil {
		r.stop()
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

type renewing struct {
	io.ReadCloser
	right *Right
}

var errExpired = fmt.Errorf("read stream: its token expired and no newer one is available: %w", api.ErrUnauthenticated)

// Read implements io.Reader. It returns ErrUnauthenticated if the stream ended because its
// token expired.
func (r *renewing) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	if err != nil && !errors.Is(err, io.EOF) && r.right.Expired() {
		err = errExpired
	}
	return n, err
}

func (r *renewing) Close() error {
	r.right.Close()
	return r.ReadCloser.Close()
}
