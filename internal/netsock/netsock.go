// Package netsock is a client of the machine's netmanager over its unix socket: typed methods for
// the node engine, and raw access to the rest. Package netmanager/socket is the server.
//
//	c := netsock.New("/run/treeline/net.sock")
//	at, err := c.Attach(ctx, wire.Attach{Key: key, NetNS: "/proc/4711/ns/net"})
//	err = c.Events(ctx, func(e wire.NetEvent) error { … })   // until the netmanager ends
package netsock

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/wire"
)

// The paths that a netmanager serves.
const (
	Attachments = "/v1/attachments"
	Status      = "/v1/status"
	Routes      = "/v1/routes"
	Peers       = "/v1/peers"
	Trace       = "/v1/trace"   // ?from=INSTANCE&to=NAME-OR-ADDRESS
	Capture     = "/v1/capture" // ?instance=INSTANCE&seconds=N&bytes=N, a pcap file as it grows
	Metrics     = "/metrics"    // of Prometheus, as text
	Up          = "/v1/up"
	Down        = "/v1/down"
	Link        = "/v1/link"
)

// The bounds of requests, in bytes.
const (
	MaxRequest = 256 << 10 // of an attachment
	MaxMessage = 12 << 20  // of a message to or from the cluster (parts.Max)
)

// Client is a client of one netmanager. It is safe for concurrent use and closes idle
// connections.
type Client struct{ http *http.Client }

// New returns a client of the netmanager at the socket. It does not dial.
func New(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", socket)
	}
	return &Client{http: &http.Client{Transport: &http.Transport{
		DialContext: dial, MaxIdleConnsPerHost: 4, IdleConnTimeout: 5 * time.Second, DisableCompression: true,
	}}}
}

// At returns the path of one attachment, followed by rest, such as "/drain".
func At(k wire.Key, rest string) string {
	return Attachments + "/" + url.PathEscape(string(k.Instance)) + "/" + fmt.Sprint(uint64(k.Epoch)) + rest
}

// Attach attaches a created workload to the network. It is idempotent. It fails with
// ErrUnavailable if the netmanager has no lease or does not answer, ErrFull if the subnet is
// exhausted or the disk is full, and ErrConflict if a host port is taken.
func (c *Client) Attach(ctx context.Context, a wire.Attach) (at wire.Attached, err error) {
	err = c.do(ctx, http.MethodPut, Attachments, a, &at)
	return at, err
}

// Detach detaches a workload. An unknown workload is not an error.
func (c *Client) Detach(ctx context.Context, k wire.Key) error {
	return c.do(ctx, http.MethodDelete, At(k, ""), nil, nil)
}

// Drain makes a workload a draining backend: it gets no new flows.
func (c *Client) Drain(ctx context.Context, k wire.Key) error {
	return c.do(ctx, http.MethodPost, At(k, "/drain"), nil, nil)
}

// SetReady sets whether a workload with health checks gets new flows. An unknown workload is not an
// error.
func (c *Client) SetReady(ctx context.Context, k wire.Key, ready bool) error {
	return c.do(ctx, http.MethodPut, At(k, "/ready"), wire.ReadyRequest{Ready: ready}, nil)
}

// Attachments returns all attachments in the order of their keys.
func (c *Client) Attachments(ctx context.Context) ([]wire.Attached, error) {
	var all wire.Attachments
	err := c.do(ctx, http.MethodGet, Attachments, nil, &all)
	return all.Items, err
}

// Status returns the status of the netmanager.
func (c *Client) Status(ctx context.Context) (s api.NetStatus, err error) {
	err = c.do(ctx, http.MethodGet, Status, nil, &s)
	return s, err
}

// Down passes an encoded message of the cluster to the netmanager.
func (c *Client) Down(ctx context.Context, payload []byte) error {
	return c.do(ctx, http.MethodPost, Down, payload, nil)
}

// Link informs the netmanager whether the node engine is connected to the cluster.
func (c *Client) Link(ctx context.Context, up bool) error {
	return c.do(ctx, http.MethodPost, Link, wire.NetLink{Up: up}, nil)
}

// Events calls fn with each event of the netmanager, until fn returns an error, the netmanager ends
// or ctx ends (both ErrUnavailable). There is one reader at a time: a new one ends the earlier one.
func (c *Client) Events(ctx context.Context, fn func(wire.NetEvent) error) error {
	resp, err := c.send(ctx, http.MethodGet, Up, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4<<10), MaxMessage+4<<10)
	for lines.Scan() {
		var e wire.NetEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("read the netmanager's events: %w: %w", api.ErrUnavailable, err)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	err = lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("the netmanager's events ended: %w: %w", api.ErrUnavailable, err)
}

// views are the paths that operators may read, even from other machines.
var views = []string{Status, Routes, Peers, Trace, Capture, Attachments, Metrics}

// Open returns the answer to a GET of one of the views, whose path may have a query. The caller
// closes it. It fails with ErrNotFound for other paths.
func (c *Client) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	bare, _, _ := strings.Cut(path, "?")
	if !slices.Contains(views, bare) {
		return nil, fmt.Errorf("read %[2]q from the netmanager: the views are %[1]s: %[3]w", strings.Join(views, ", "), bare, api.ErrNotFound)
	}
	resp, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, MaxMessage)) // so that the connection is reused
		return err
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, MaxMessage)).Decode(out); err != nil {
		return fmt.Errorf("%s %s: read the answer: %w: %w", method, path, api.ErrUnavailable, err)
	}
	return nil
}

func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	switch in := in.(type) {
	case nil:
	case []byte: // already JSON
		body = bytes.NewReader(in)
	default:
		text, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w: %w", method, path, api.ErrInvalid, err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://netmanager"+path, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %w", method, path, api.ErrInvalid, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := call.Do(c.http, req)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return nil, fmt.Errorf("the netmanager does not answer at %s: %w: %w", op.Addr, api.ErrUnavailable, op.Err)
	}
	return resp, err
}
