package checks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
)

const (
	userAgent = "treeline-health-check/1"

	maxHeaders  = 16 << 10 // bytes of the status line and the headers of an answer
	maxBody     = 64 << 10 // bytes of an answer's body that are read
	maxInterim  = 4        // answers such as 103 before the final one
	bodyTimeout = 100 * time.Millisecond
)

// Package net/http's client is not used, because each of its idle connections has two goroutines and
// two buffers, and a node has thousands of checks that wait.

// readers are the buffers of checks that run.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// get sends a GET request and checks the status of the answer.
func (c *Checks) get(ctx context.Context, t *target, kind api.CheckKind, check api.Check) error {
	conn := c.take(t, kind)
	if conn != nil {
		status, reusable, err := c.exchange(ctx, conn, t, check)
		if err == nil {
			return c.judge(t, kind, check, conn, status, reusable)
		}
		_ = conn.Close()
		if ctx.Err() != nil {
			return err
		}
		// The workload may close idle connections: only a new one shows whether it answers.
	}
	opened := time.Now()
	raw, err := c.dial(ctx, t, check.HTTP.Port)
	if err != nil {
		return err
	}
	conn = &kept{raw, raw, opened}
	if check.HTTP.Scheme == "https" {
		if conn.Conn, err = tlsOf(ctx, raw); err != nil {
			_ = raw.Close()
			return err
		}
	}
	status, reusable, err := c.exchange(ctx, conn, t, check)
	if err != nil {
		_ = conn.Close()
		return err
	}
	return c.judge(t, kind, check, conn, status, reusable)
}

// judge keeps or closes the connection, and returns an error unless the status passes.
func (c *Checks) judge(t *target, kind api.CheckKind, check api.Check, conn *kept, status int, reusable bool) error {
	if reusable {
		c.keep(t, kind, conn, check.Every())
	} else {
		_ = conn.Close()
	}
	if first, last, _ := api.StatusRange(check.HTTP.Status); status < first || status > last {
		return fmt.Errorf("status %d", status)
	}
	return nil
}

// exchange sends a request and returns the status of the answer, and whether the connection can be used
// again.
func (c *Checks) exchange(ctx context.Context, conn *kept, t *target, check api.Check) (status int, reusable bool, err error) {
	end, _ := ctx.Deadline()
	_ = conn.SetDeadline(end)
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(past) })()
	if _, err := conn.Write(request(check, t.place.addr())); err != nil {
		return 0, false, err
	}
	limit := io.LimitedReader{R: conn, N: maxHeaders}
	r := readers.Get().(*bufio.Reader)
	defer func() {
		r.Reset(nil)
		readers.Put(r)
	}()
	r.Reset(&limit)
	var resp *http.Response
	for range maxInterim {
		if resp, err = http.ReadResponse(r, nil); err != nil {
			if limit.N <= 0 {
				err = fmt.Errorf("headers of more than %d KiB", maxHeaders>>10)
			}
			return 0, false, cause(err)
		}
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			break
		}
	}
	return resp.StatusCode, finish(conn, &limit, r, resp, end), nil
}

// finish reads the body of an answer and reports whether the connection can be used again.
func finish(conn *kept, limit *io.LimitedReader, r *bufio.Reader, resp *http.Response, end time.Time) bool {
	if resp.Close || resp.StatusCode < 200 || resp.ContentLength > maxBody {
		return false
	}
	limit.N = maxBody
	if soon := time.Now().Add(bodyTimeout); soon.Before(end) {
		_ = conn.SetReadDeadline(soon) // the status is known: the rest may not take long
	}
	_, err := io.Copy(io.Discard, resp.Body)
	return err == nil && limit.N > 0 && r.Buffered() == 0
}

// cause returns an error of net/http without its own prefix.
func cause(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return errors.New("the connection was closed before an answer")
	case strings.HasPrefix(err.Error(), "malformed HTTP"):
		return errors.New("the answer is not HTTP")
	}
	return err
}

// request returns the bytes of the request.
func request(check api.Check, at netip.Addr) []byte {
	h := check.HTTP
	var b bytes.Buffer
	b.Grow(256)
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\n", h.Path)
	given := map[string]bool{}
	for _, line := range h.Headers {
		name, value, _ := strings.Cut(line, ":")
		given[strings.ToLower(name)] = true
		fmt.Fprintf(&b, "%s: %s\r\n", name, strings.TrimSpace(value))
	}
	for _, d := range []struct{ name, value string }{
		{"Host", fmt.Sprintf("%s:%d", at, h.Port)}, {"User-Agent", userAgent}, {"Accept", "*/*"},
	} {
		if !given[strings.ToLower(d.name)] {
			fmt.Fprintf(&b, "%s: %s\r\n", d.name, d.value)
		}
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// output keeps the beginning of what a command writes.
type output struct {
	mu   sync.Mutex // the streams of a command are copied by several goroutines
	text []byte
}

// maxOutput limits the kept output of a command.
const maxOutput = 4 << 10

// Write implements io.Writer. It never fails, so that the command does not notice the limit.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p[:min(len(p), maxOutput-len(o.text))]...)
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}
