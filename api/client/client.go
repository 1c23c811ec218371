// Package client is a client for the HTTP APIs of the root and of clusters. It imports only the
// standard library, package api and package replicas.
//
//	c, err := client.New(client.Options{URL: "https://10.0.0.5:7443", CA: pem, Tokens: client.Static(token)})
//	apps, rev, err := c.Apps(ctx, client.ListOptions{})
//	for change, err := range client.Watch[api.App](ctx, c, client.Apps, client.WatchOptions{Since: rev}) { … }
//
// # Errors
//
// Every method returns errors that wrap a kind of package api; test them with errors.Is. If the
// server answers with an error, it is an *api.Problem, whose kind follows from its status:
// ErrInvalid (422), ErrUnauthenticated (401), ErrForbidden (403), ErrNotFound (404), ErrConflict
// (409), ErrPrecondition (412: the object is not at the given revision), ErrTooMany (429),
// ErrUnavailable (503). If the server cannot be reached, the error is ErrUnavailable, or ErrTimeout
// after the deadline of the context. If the server's certificate is not the expected one, it is
// ErrUnauthenticated. Methods document only errors with a further meaning.
//
// # Limits
//
// A dial takes at most 5 s, a TLS handshake 10 s, and the headers of an answer a minute; limit the
// rest with the context. The client repeats no request, except once with a new token if the server
// refuses the first (see Tokens).
//
// # Replicas
//
// With Options.Replicas, a request goes to the replica of the root that answered last, and to another
// one if that cannot be reached or is a standby. A request that may have been executed is sent again
// only if it reads (see package replicas). While no replica is active, requests wait for up to 10 s.
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
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
)

// takeover is how long requests wait for a replica to become active. It takes about 4 s.
const takeover = 10 * time.Second

// Tokens supplies bearer tokens. Implementations are safe for concurrent use.
type Tokens interface {
	// Token returns the token to send. refused, if not empty, is a token that the server did not
	// accept: Token returns another one, or ErrUnauthenticated if there is none.
	Token(ctx context.Context, refused string) (string, error)
}

// Static is a token that is never renewed.
type Static string

// Token returns the token, or ErrUnauthenticated if it is empty or was refused.
func (s Static) Token(_ context.Context, refused string) (string, error) {
	if s == "" || refused == string(s) {
		return "", fmt.Errorf("token missing or refused by the server; sign in: %w", api.ErrUnauthenticated)
	}
	return string(s), nil
}

type Options struct {
	URL    string       // https://host:port
	CA     []byte       // PEM of the only root certificates to trust, the newest first. Empty: the system's roots, and the host name is checked
	Expect string       // with CA: the server's identity, treeline://root (the default) or treeline://cluster/<id>
	Tokens Tokens       // nil: no token is sent
	HTTP   *http.Client // used instead of a client with CA and Expect

	// Replicas are further URLs of the root, of which the root itself has told (api.Session). They are
	// used only with CA, which proves that the root is there.
	Replicas []string
	// Followed is called during a handshake with what is to be CA from then on: the key of the root's authority was replaced, which its
	// earlier key has confirmed, or an earlier key was retired. nil: the client alone remembers it.
	Followed func(ca []byte)
}

// Client sends requests to one server. It is safe for concurrent use.
type Client struct {
	url    string
	own    api.ClusterID // the cluster whose own port url is; empty: the root's
	tokens Tokens
	http   *http.Client
	base   *http.Transport     // below http; nil with Options.HTTP
	addrs  *replicas.Addresses // of base

	upgradeOnce sync.Once
	upgrade     *http.Client // made at first use, see http1
}

// New returns a client. It opens no connection. It returns ErrInvalid if URL is not
// https://host:port or CA is not a PEM certificate.
func New(o Options) (*Client, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("address %q is not https://host:port: %w", o.URL, api.ErrInvalid)
	}
	c := &Client{url: strings.TrimSuffix(o.URL, "/"), tokens: o.Tokens, http: o.HTTP}
	if id, ok := strings.CutPrefix(o.Expect, clusterIdentity); ok {
		c.own = api.ClusterID(id)
	}
	if c.http == nil {
		tc, err := tlsConfig(o)
		if err != nil {
			return nil, err
		}
		c.addrs = replicas.New(c.url)
		if len(o.CA) > 0 && c.own == "" {
			c.addrs.Learn(o.Replicas)
		}
		c.base = &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: tc, ForceAttemptHTTP2: true,
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: time.Minute,
			IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 16,
		}
		c.http = &http.Client{
			Transport:     c.addrs.Transport(c.base, takeover),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return c, nil
}

func (c *Client) URL() string { return c.url }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Request is one request. Fields with the zero value are not sent.
type Request struct {
	Method      string
	Path        string // escaped, begins with /v1
	Query       url.Values
	Header      http.Header
	Body        any    // []byte is sent as it is, anything else as JSON
	ContentType string // of a []byte body
	Open        bool   // send no token
}

// Do sends a request, decodes the JSON answer into out, and returns the headers of the answer. It
// ignores the body if out is nil or the status is 204.
func (c *Client) Do(ctx context.Context, r Request, out any) (http.Header, error) {
	resp, err := c.Raw(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if out != nil && resp.StatusCode != http.StatusNoContent {
		if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
			return nil, fmt.Errorf("read the answer to %s %s: %w", r.Method, r.Path, unreachable(ctx, err))
		}
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection is reused
	return resp.Header, nil
}

// Raw sends a request and returns the answer with its body unread. The caller closes the body.
// Errors are those of Do.
func (c *Client) Raw(ctx context.Context, r Request) (*http.Response, error) {
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
	if trace, ok := ctx.Value(traceKey{}).(string); ok {
		req.Header.Set("traceparent", trace)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", c.url, unreachable(ctx, err))
	}
	return resp, nil
}

// unreachable wraps a network error with its kind.
func unreachable(ctx context.Context, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case errors.Is(err, api.ErrUnauthenticated): // the certificate is not the expected one
		return err
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", err, api.ErrTimeout)
	case ctx.Err() != nil:
		return err
	}
	return fmt.Errorf("%w: %w", err, api.ErrUnavailable)
}

// problem returns the *api.Problem in an answer and closes the body. If there is none, for example
// in an answer of a proxy, it returns a problem with the answer's status.
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

type traceKey struct{}

// WithTrace returns a context whose requests belong to the trace of a W3C traceparent; without one, to none.
func WithTrace(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, traceparent)
}
