// Package remote asks a scheduler that is an HTTP service. It sends a sched.Ask as JSON in a
// POST request and expects a sched.Answer in a response with status 200. The deadline is in
// the question and in the request's context.
//
//	c, err := remote.New("http://127.0.0.1:8000/rank")
//	answer, err := c.Rank(ctx, ask)
package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// MaxAnswer bounds the body of an answer, in bytes.
const MaxAnswer = 4 << 20

// Client asks one URL. It is safe for concurrent use.
type Client struct {
	url  string
	name string
	http *http.Client
}

// New returns a Client for an http or https URL. It trusts the system's certificate
// authorities. It returns ErrInvalid for any other text.
func New(text string) (*Client, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Fragment != "" {
		return nil, fmt.Errorf("scheduler URL: want http://host… or https://host…: %w", api.ErrInvalid)
	}
	return &Client{url: u.String(), name: u.Redacted(), http: &http.Client{
		Transport: &http.Transport{
			Proxy:        http.ProxyFromEnvironment,
			MaxIdleConns: 8, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 5 * time.Second,
			MaxResponseHeaderBytes: 16 << 10,
		},
		// Do not follow redirects: the operator configured this service only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Name returns the URL without its password.
func (c *Client) Name() string { return c.name }

func (c *Client) Close(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// Rank asks the service. It returns ErrUnavailable unless the response has status 200, and
// ErrInvalid for a response above MaxAnswer.
func (c *Client) Rank(ctx context.Context, ask []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(ask))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL, which may hold a password
		}
		return nil, fmt.Errorf("%w: %w", err, api.ErrUnavailable)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the response: %w: %w", err, api.ErrUnavailable)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("response status %s, want 200: %w", res.Status, api.ErrUnavailable)
	case len(body) > MaxAnswer:
		return nil, fmt.Errorf("response has more than %d bytes: %w", MaxAnswer, api.ErrInvalid)
	}
	return body, nil
}
