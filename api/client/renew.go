package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// renewEarly is how long before the end of a stream's right a fresh token is
// shown: less than the time before its end at which a session renews its token.
const renewEarly = 15 * time.Second

// renewed is the body of a stream that shows a fresh token before the one expires
// that opened it, as long as there are any.
func (c *Client) renewed(ctx context.Context, resp *http.Response) io.ReadCloser {
	name := resp.Header.Get("Treeline-Stream")
	life, err := strconv.ParseFloat(resp.Header.Get("Treeline-Stream-Life"), 64)
	if name == "" || err != nil {
		return resp.Body
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	ends := time.Now().Add(seconds(life))
	go func() {
		defer close(done)
		for {
			left := time.Until(ends)
			select {
			case <-time.After(max(left-renewEarly, left/2)):
			case <-ctx.Done():
				return
			}
			var out struct {
				Life float64 `json:"life_seconds"`
			}
			_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/streams/" + url.PathEscape(name)}, &out)
			later := time.Now().Add(seconds(out.Life))
			if err != nil || later.Sub(ends) < time.Second {
				return // no fresher token: the stream ends with this one
			}
			ends = later
		}
	}()
	return &renewing{resp.Body, func() { cancel(); <-done }}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

type renewing struct {
	io.ReadCloser
	stop func()
}

// Close is io.Closer's.
func (r *renewing) Close() error {
	r.stop()
	return r.ReadCloser.Close()
}
