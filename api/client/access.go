package client

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// AccessPath returns the path for access to an object: exec, attach or portforward of an instance,
// snapshot or restore of a volume.
func AccessPath[ID ~string](k Kind, id ID, what string) string { return pathOf(k, id) + "/" + what }

// Upgrade sends a request to a path of AccessPath, which the server answers by changing to the WebSocket protocol. dial sends the request with a client of HTTP/1.1
// to the URL with the header, and returns the answer; a WebSocket library does. The right to the stream
// is renewed until Right is closed.
//
// Errors are those of dial, and those of the server if dial returns an answer with an error status.
func (c *Client) Upgrade(ctx context.Context, path string, q url.Values, dial func(c *http.Client, url string, h http.Header) (*http.Response, error)) (*Right, error) {
	target := c.url + path
	if len(q) > 0 {
		target += "?" + q.Encode()
	}
	refused := ""
	for {
		h := http.Header{}
		token := ""
		if c.tokens != nil {
			var err error
			if token, err = c.tokens.Token(ctx, refused); err != nil {
				return nil, err
			}
			h.Set("Authorization", "Bearer "+token)
		}
		began := time.Now()
		resp, err := dial(c.http1(), target, h)
		switch {
		case err == nil:
			return c.renew(ctx, began, resp.Header), nil
		case resp == nil || resp.StatusCode < 400:
			return nil, unreachable(ctx, err)
		}
		err = problem(resp)
		if resp.StatusCode != http.StatusUnauthorized || token == "" || refused != "" {
			return nil, err
		}
		refused = token
	}
}

// http1 returns the client for HTTP/1.1, which alone can change to another protocol.
func (c *Client) http1() *http.Client {
	c.upgradeOnce.Do(func() {
		c.upgrade = c.http
		if c.base != nil {
			t := c.base.Clone()
			t.ForceAttemptHTTP2, t.TLSNextProto = false, nil
			t.Protocols = new(http.Protocols)
			t.Protocols.SetHTTP1(true)
			// A silent server is detected after 25 s: there are no requests with time limits.
			dialer := net.Dialer{Timeout: 5 * time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
			t.DialContext = dialer.DialContext
			if t.TLSClientConfig != nil {
				t.TLSClientConfig.NextProtos = nil
			}
			c.upgrade = &http.Client{Transport: c.addrs.Transport(t, takeover), CheckRedirect: c.http.CheckRedirect}
		}
	})
	return c.upgrade
}

// ExecQuery returns the query of a request for an exec.
func ExecQuery(e api.Exec) url.Values {
	return url.Values{
		"arg": e.Args, "tty": {strconv.FormatBool(e.TTY)}, "stdin": {strconv.FormatBool(e.Stdin)},
		"width": {strconv.Itoa(int(e.Width))}, "height": {strconv.Itoa(int(e.Height))},
	}
}
