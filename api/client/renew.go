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
	name := resp.Header.Get("Treeline-Stream")
	life, err := strconv.ParseFloat(resp.Header.Get("Treeline-Stream-Life"), 64)
	if name == "" || err != nil {
		return resp.Body, nil
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
	return r, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

type renewing struct {
	io.ReadCloser
	ends atomic.Pointer[time.Time] // when the right to read the stream expires
	stop func()
}

var errExpired = fmt.Errorf("read stream: its token expired and no newer one is available: %w", api.ErrUnauthenticated)

// Read implements io.Reader. It returns ErrUnauthenticated if the stream ended because its
// token expired.
func (r *renewing) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	if err != nil && !errors.Is(err, io.EOF) && time.Until(*r.ends.Load()) < minRenewal {
		err = errExpired
	}
	return n, err
}

func (r *renewing) Close() error {
	r.stop()
	return r.ReadCloser.Close()
}
