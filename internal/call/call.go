// Package call is how one tier asks another over HTTP: JSON in, JSON out, and
// problem details as errors of our own kinds.
//
//	var joined api.NodeJoined
//	err := call.JSON(ctx, client, "https://cluster:7444/v1/join/node", api.JoinNode{…}, &joined)
package call

import (
	"bytes"
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
)

// MaxAnswer bounds an answer.
const MaxAnswer = 4 << 20

// JSON posts in to the URL and decodes the answer into out, which may be nil.
// An error that the other side gave is an *api.Problem, and so of its kind; one
// without an answer is ErrUnavailable.
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

// Post is JSON for those who need the response itself; they close its body.
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

// Do sends the request; an answer that is no success is an error as in JSON.
func Do(c *http.Client, req *http.Request) (*http.Response, error) {
	resp, err := c.Do(req)
	if err != nil {
		// What our own checks of the peer's certificate said keeps its kind.
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

// ProblemOf is the error that a response carries.
func ProblemOf(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // half an explanation is better than none
	return ParseProblem(resp.Header.Get("Content-Type"), resp.StatusCode, text)
}

// ParseProblem reads problem details, or makes some of whatever it is instead.
func ParseProblem(contentType string, status int, text []byte) *api.Problem {
	p := new(api.Problem)
	if t, _, _ := mime.ParseMediaType(contentType); t == "application/problem+json" && json.Unmarshal(text, p) == nil {
		if p.Status == 0 {
			p.Status = status
		}
		return p
	}
	if len(text) > 200 {
		text = text[:200]
	}
	return &api.Problem{Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf("answered %d %s", status, bytes.TrimSpace(text))}
}

// Problem is an error as problem details: what call's other functions read.
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

// RetryAfter is the header of that name for an error: at least one second, and what
// the error says with a method RetryAfter.
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
	_ = json.NewEncoder(w).Encode(p) // who asked is gone
}
