// Package client speaks to the orchestrators' HTTP APIs: typed requests,
// problems as errors of api's kinds, lists page by page, watches that resume,
// logs as they come. It imports the standard library only.
//
// It keeps no state but connections; where tokens are kept is Tokens' business.
//
//	c, err := client.New(client.Options{URL: "https://10.0.0.5:7443", CA: pem, Tokens: client.Static(token)})
//	apps, rev, err := c.Apps(ctx, client.ListOptions{})
//	for change, err := range client.Watch[api.App](ctx, c, client.Apps, client.WatchOptions{Since: rev}) { … }
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Tokens gives bearer tokens. It is safe for concurrent use.
type Tokens interface {
	// Token is the token to show. refused, if not empty, is one that the server
	// did not take: another is wanted, or ErrUnauthenticated if there is none.
	Token(ctx context.Context, refused string) (string, error)
}

// Static is a token that is what it is.
type Static string

// Token is Tokens'.
func (s Static) Token(_ context.Context, refused string) (string, error) {
	if s == "" || refused == string(s) {
		return "", fmt.Errorf("the token is missing or not taken; sign in: %w", api.ErrUnauthenticated)
	}
	return string(s), nil
}

// Options are what a client needs.
type Options struct {
	URL    string       // https://host:port
	CA     []byte       // PEM; trusts this root and expects the identity. Empty: the machine's own roots and the host's name
	Expect string       // identity of the server: treeline://root (empty), or treeline://cluster/<id>
	Tokens Tokens       // nil: shows none
	HTTP   *http.Client // instead of one made from CA and Expect
}

// Client speaks to one server. It is safe for concurrent use.
type Client struct {
	url    string
	tokens Tokens
	http   *http.Client
}

// New is a client; it dials nothing yet. A URL or CA that is none is ErrInvalid.
func New(o Options) (*Client, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("address %q is not https://host:port: %w", o.URL, api.ErrInvalid)
	}
	c := &Client{url: strings.TrimSuffix(o.URL, "/"), tokens: o.Tokens, http: o.HTTP}
	if c.http == nil {
		tc, err := tlsConfig(o)
		if err != nil {
			return nil, err
		}
		c.http = &http.Client{
			Transport: &http.Transport{
				Proxy: http.ProxyFromEnvironment, TLSClientConfig: tc, ForceAttemptHTTP2: true,
				DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
				TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: time.Minute,
				IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 16,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return c, nil
}

// URL is the server's.
func (c *Client) URL() string { return c.url }

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Request is one request. The zero value of each part sets nothing.
type Request struct {
	Method      string
	Path        string // escaped, from /v1 on
	Query       url.Values
	Header      http.Header
	Body        any    // []byte as it is, else as JSON
	ContentType string // of a []byte body
	Open        bool   // shows no token
}

// Do sends a request and decodes a JSON answer into out, unless it is nil. An
// answer that is no success is an error: an *api.Problem where the server says
// so; a server that cannot be reached is ErrUnavailable.
func (c *Client) Do(ctx context.Context, r Request, out any) (http.Header, error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if out != nil && resp.StatusCode != http.StatusNoContent {
		if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
			return nil, fmt.Errorf("read the answer of %s %s: %w", r.Method, r.Path, unreachable(ctx, err))
		}
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // lets the connection be used again
	return resp.Header, nil
}

// Raw sends a request and returns the answer as it comes; the caller closes its
// body. What is no success is an error, as with Do.
func (c *Client) Raw(ctx context.Context, r Request) (*http.Response, error) { return c.send(ctx, r) }

// send sends a request, once more with another token where one was refused.
func (c *Client) send(ctx context.Context, r Request) (*http.Response, error) {
	var body []byte
	switch b := r.Body.(type) {
	case nil:
	case []byte:
		body = b
	default:
		var err error
		if body, err = json.Marshal(b); err != nil {
			return nil, fmt.Errorf("encode the body of %s %s: %w", r.Method, r.Path, err)
		}
		r.ContentType = "application/json"
	}
	refused := ""
	for {
		token := ""
		if c.tokens != nil && !r.Open {
			var err error
			if token, err = c.tokens.Token(ctx, refused); err != nil {
				return nil, err
			}
		}
		resp, err := c.once(ctx, r, body, token)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode < 300 {
			return resp, nil
		}
		err = problem(resp)
		if resp.StatusCode != http.StatusUnauthorized || token == "" || refused != "" {
			return nil, err
		}
		refused = token
	}
}

func (c *Client) once(ctx context.Context, r Request, body []byte, token string) (*http.Response, error) {
	target := c.url + r.Path
	if len(r.Query) > 0 {
		target += "?" + r.Query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, target, nil)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %w", r.Method, r.Path, err, api.ErrInvalid)
	}
	if body != nil {
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		req.Header.Set("Content-Type", r.ContentType)
	}
	for k, v := range r.Header {
		req.Header[k] = v
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", c.url, unreachable(ctx, err))
	}
	return resp, nil
}

// unreachable gives an error of the network its kind.
func unreachable(ctx context.Context, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case errors.Is(err, api.ErrUnauthenticated): // the server is not who it should be
		return err
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", err, api.ErrTimeout)
	case ctx.Err() != nil:
		return err
	}
	return fmt.Errorf("%w: %w", err, api.ErrUnavailable)
}

// problem reads an answer that is no success, and closes it.
func problem(resp *http.Response) error {
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var p api.Problem
	if err := json.Unmarshal(text, &p); err != nil || p.Status != resp.StatusCode {
		_, code := api.HTTPStatus(api.KindOf(resp.StatusCode))
		p = api.Problem{Title: http.StatusText(resp.StatusCode), Status: resp.StatusCode, Code: code, Detail: strings.TrimSpace(resp.Status)}
	}
	return &p
}
