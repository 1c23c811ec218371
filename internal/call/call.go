// Package call has the HTTP client and server parts of requests between tiers: JSON in, JSON out,
// and problem details for errors of the kinds of package api.
//
//	var joined wire.NodeJoined
//	err := call.JSON(ctx, client, "https://cluster:7444/v1/join/node", wire.JoinNode{…}, &joined)
package call

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/jsonsize"
)

// MaxAnswer bounds an answer, in bytes.
const MaxAnswer = 4 << 20

// JSON posts in to the URL and decodes the answer into out, which may be nil. It fails with an
// *api.Problem if the server answers with an error, and with ErrUnavailable without an answer.
func JSON(ctx context.Context, c *http.Client, url string, in, out any) error {
	resp, err := Post(ctx, c, url, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, MaxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("post to %s: read the answer: %w: %w", url, api.ErrUnavailable, err)
	}
	return nil
}

// Post is JSON, but returns the response. The caller closes its body.
func Post(ctx context.Context, c *http.Client, url string, in any) (*http.Response, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("post to %s: %w", url, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("post to %s: %w", url, err)
	}
	req.Header.Set("Content-Type", "application/json")
	return Do(c, req)
}

// Do sends the request. A status of 300 or above is an error as in JSON.
func Do(c *http.Client, req *http.Request) (*http.Response, error) {
	resp, err := c.Do(req)
	if err != nil {
		// Errors of package trust keep their kind.
		for _, kind := range []error{api.ErrUnauthenticated, api.ErrForbidden} {
			if errors.Is(err, kind) {
				return nil, err
			}
		}
		return nil, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, fmt.Errorf("%s %s: %w", req.Method, req.URL, ProblemOf(resp))
}

func ProblemOf(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // on error, use the part that was read
	return ParseProblem(resp.Header.Get("Content-Type"), resp.StatusCode, text)
}

// ParseProblem parses problem details. Other answers become a problem with their status and text.
func ParseProblem(contentType string, status int, text []byte) *api.Problem {
	p := new(api.Problem)
	if t, _, _ := mime.ParseMediaType(contentType); t == "application/problem+json" && json.Unmarshal(text, p) == nil {
		p.Status = cmp.Or(p.Status, status)
		return p
	}
	if len(text) > 200 {
		text = text[:200]
	}
	return &api.Problem{Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf("answered %d %s", status, bytes.TrimSpace(text))}
}

// Problem returns an error as problem details.
func Problem(err error) *api.Problem {
	var p *api.Problem
	if errors.As(err, &p) {
		return p
	}
	status, code := api.HTTPStatus(err)
	return &api.Problem{
		Type: api.ProblemType(code), Title: http.StatusText(status), Status: status, Code: code, Detail: err.Error(),
		Retryable: status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout,
	}
}

// RetryAfter returns the Retry-After header for an error, in seconds: the result of the error's
// method RetryAfter, rounded up, but at least one.
func RetryAfter(err error) string {
	var known interface{ RetryAfter() time.Duration }
	seconds := 1.0
	if errors.As(err, &known) {
		seconds = max(seconds, math.Ceil(known.RetryAfter().Seconds()))
	}
	return strconv.Itoa(int(seconds))
}

// Write answers with the error as problem details.
func Write(w http.ResponseWriter, err error) {
	p := Problem(err)
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", RetryAfter(err))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // an error means that the client is gone
}

const (
	maxBody  = 64 << 10
	bodyTime = 30 * time.Second // for a small body to arrive
)

// ReadJSON decodes a request's body, which must arrive within 30 s. It fails with ErrTooLarge above
// 64 KiB, and with ErrInvalid if the body is malformed.
func ReadJSON(w http.ResponseWriter, r *http.Request, into any) error {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	text, err := ReadBody(r, jsonsize.Limit{Bytes: maxBody})
	if err != nil {
		return err
	}
	return Decode(r, text, into)
}

// ReadBody reads a request's body. It fails with ErrTooLarge above the limit.
func ReadBody(r *http.Request, limit jsonsize.Limit) ([]byte, error) {
	text, err := limit.Read(r.Body)
	if err != nil && !errors.Is(err, api.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", err, api.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("read the body of %s: %w", r.URL.Path, err)
	}
	return text, nil
}

// Decode decodes a request's body. It fails with ErrInvalid if the body is malformed.
func Decode(r *http.Request, text []byte, into any) error {
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("decode the body of %s: %w: %w", r.URL.Path, err, api.ErrInvalid)
	}
	return nil
}

// WriteJSON answers with v as JSON.
func WriteJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // an error means that the client is gone
}
