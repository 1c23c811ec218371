// Package socket serves a netmanager's API on a unix socket: attachments and the cluster's
// messages for the node engine, and queries of operators. An Overlay implements the API, and
// internal/netsock is the client. Only root and the user of the netmanager may connect.
//
//	ln, err := socket.Listen("/run/treeline/net.sock")
//	err = daemon.Serve(ctx, ln, socket.Handler(overlay), nil)
package socket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Overlay implements the API. Its methods are safe for concurrent use, and their errors wrap kinds of
// package api.
//
// Attach, Detach, Drain and SetReady may be repeated; the effect of the first three is durable when they
// return. Attachments
// returns the attachments in the order of their keys.
//
// View returns the answer to an api.NodeRoute, named by its path at the netmanager. A
// slice is the items of a page.
//
// Trace returns what would happen to a new flow. It fails with ErrNotFound if the instance is not on
// this node.
//
// Capture writes the packets of an instance as a pcap file until a bound is reached or ctx ends,
// which is not an error.
//
// Events writes events until ctx ends or write fails. A new reader ends the earlier one.
//
// Down handles the cluster's messages in order. Link reports whether the cluster is connected.
type Overlay interface {
	Attach(ctx context.Context, a wire.Attach) (wire.Attached, error)
	Detach(ctx context.Context, k wire.Key) error
	Drain(ctx context.Context, k wire.Key) error
	SetReady(ctx context.Context, k wire.Key, ready bool) error
	Attachments(ctx context.Context) ([]wire.Attached, error)
	View(ctx context.Context, path string) (any, error)
	Trace(ctx context.Context, from api.InstanceID, to string) (api.NetTrace, error)
	Capture(ctx context.Context, what Capture, w io.Writer) error
	Events(ctx context.Context, write func(wire.NetEvent) error) error
	Down(ctx context.Context, d wire.NetDown) error
	Link(ctx context.Context, up bool) error
	Metrics(w http.ResponseWriter, r *http.Request)
}

// Handler serves the overlay's API.
func Handler(o Overlay) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, fn func(w http.ResponseWriter, r *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := fn(w, r); err != nil {
				call.Write(w, err)
			}
		})
	}
	handle("PUT "+netsock.Attachments, func(w http.ResponseWriter, r *http.Request) error {
		var a wire.Attach
		if err := read(r, netsock.MaxRequest, &a); err != nil {
			return err
		}
		if err := checkAttach(a); err != nil {
			return err
		}
		return answer(w)(o.Attach(r.Context(), a))
	})
	handle("GET "+netsock.Attachments, func(w http.ResponseWriter, r *http.Request) error {
		all, err := o.Attachments(r.Context())
		return answer(w)(wire.Attachments{Items: all}, err)
	})
	const one = netsock.Attachments + "/{instance}/{epoch}"
	handle("DELETE "+one, withKey(o.Detach))
	handle("POST "+one+"/drain", withKey(o.Drain))
	handle("PUT "+one+"/ready", func(w http.ResponseWriter, r *http.Request) error {
		var q wire.ReadyRequest
		if err := read(r, netsock.MaxRequest, &q); err != nil {
			return err
		}
		return withKey(func(ctx context.Context, k wire.Key) error { return o.SetReady(ctx, k, q.Ready) })(w, r)
	})
	for _, route := range api.NodeRoutes {
		handle("GET "+route.Netmanager, func(w http.ResponseWriter, r *http.Request) error {
			v, err := o.View(r.Context(), route.Netmanager)
			if err == nil && reflect.TypeOf(v).Kind() == reflect.Slice {
				list(w, reflect.ValueOf(v))
				return nil
			}
			return answer(w)(v, err)
		})
	}
	handle("GET "+netsock.Trace, func(w http.ResponseWriter, r *http.Request) error {
		from, err := api.ParseInstanceID(r.FormValue("from"))
		if err != nil {
			return err
		}
		to := r.FormValue("to")
		if to == "" || len(to) > 255 {
			return fmt.Errorf("parameter \"to\" is missing or too long: give a name or an address: %w", api.ErrInvalid)
		}
		return answer(w)(anyOf(o.Trace(r.Context(), from, to)))
	})
	captures := newCaptures()
	handle("GET "+netsock.Capture, func(w http.ResponseWriter, r *http.Request) error { return captures.serve(o, w, r) })
	handle("GET "+netsock.Up, func(w http.ResponseWriter, r *http.Request) error { return events(o, w, r) })
	handle("POST "+netsock.Down, func(w http.ResponseWriter, r *http.Request) error {
		var d wire.NetDown
		if err := read(r, netsock.MaxMessage, &d); err != nil {
			return err
		}
		return done(w, o.Down(r.Context(), d))
	})
	handle("POST "+netsock.Link, func(w http.ResponseWriter, r *http.Request) error {
		var l wire.NetLink
		if err := read(r, netsock.MaxRequest, &l); err != nil {
			return err
		}
		return done(w, o.Link(r.Context(), l.Up))
	})
	mux.HandleFunc("GET "+netsock.Metrics, o.Metrics)
	handle("/", func(_ http.ResponseWriter, r *http.Request) error {
		return fmt.Errorf("%s %s: the netmanager has no such path: %w", r.Method, r.URL.Path, api.ErrNotFound)
	})
	return mux
}

// checkAttach validates a request. The Overlay checks whether it can be carried out.
func checkAttach(a wire.Attach) error {
	if _, err := api.ParseInstanceID(string(a.Instance)); err != nil {
		return err
	}
	switch {
	case len(a.NetNS) == 0 || len(a.NetNS) > 4096 || a.NetNS[0] != '/':
		return fmt.Errorf("attach %s: netns %.80q is not an absolute path: %w", a.Key, a.NetNS, api.ErrInvalid)
	case len(a.Ports) > api.MaxPorts:
		return fmt.Errorf("attach %s: %d ports, at most %d: %w", a.Key, len(a.Ports), api.MaxPorts, api.ErrInvalid)
	case a.BandwidthIn < 0 || a.BandwidthOut < 0:
		return fmt.Errorf("attach %s: bandwidth %d in, %d out is negative: %w", a.Key, a.BandwidthIn, a.BandwidthOut, api.ErrInvalid)
	}
	for _, p := range a.Ports {
		if p.Host == 0 || p.Instance == 0 || p.Protocol != "tcp" && p.Protocol != "udp" && p.Protocol != "sctp" {
			return fmt.Errorf("attach %s: port %s: %w", a.Key, p, api.ErrInvalid)
		}
	}
	return nil
}

func withKey(fn func(context.Context, wire.Key) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		id, err := api.ParseInstanceID(r.PathValue("instance"))
		if err != nil {
			return err
		}
		epoch, err := strconv.ParseUint(r.PathValue("epoch"), 10, 64)
		if err != nil {
			return fmt.Errorf("epoch %.40q is not a number: %w", r.PathValue("epoch"), api.ErrInvalid)
		}
		return done(w, fn(r.Context(), wire.Key{Instance: id, Epoch: api.Epoch(epoch)}))
	}
}

func events(o Overlay, w http.ResponseWriter, r *http.Request) error {
	s := &stream{w: w, to: http.NewResponseController(w), kind: "application/x-ndjson"}
	err := o.Events(r.Context(), func(e wire.NetEvent) error {
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		_, err = s.Write(append(text, '\n'))
		return err
	})
	if !s.begun {
		return err
	}
	return nil
}

const writeTime = 30 * time.Second

// stream flushes each write. An error before the first write can still be sent as the response.
type stream struct {
	w     http.ResponseWriter
	to    *http.ResponseController
	kind  string
	begun bool
}

func (s *stream) Write(p []byte) (int, error) {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", s.kind)
	}
	_ = s.to.SetWriteDeadline(time.Now().Add(writeTime))
	n, err := s.w.Write(p)
	if err == nil {
		err = s.to.Flush()
	}
	return n, err
}

func read(r *http.Request, limit int64, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, limit))
	err := d.Decode(into)
	if err == nil && d.More() {
		err = errors.New("more than one document")
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return fmt.Errorf("%s %s: the body is larger than %d bytes: %w", r.Method, r.URL.Path, tooLarge.Limit, api.ErrTooLarge)
	}
	if err != nil {
		return fmt.Errorf("%s %s: decode the body: %w: %w", r.Method, r.URL.Path, api.ErrInvalid, err)
	}
	return nil
}

func anyOf[T any](v T, err error) (any, error) { return v, err }

// list writes a page item by item, because a thousand routes encoded at once take more memory than
// the state that they describe.
func list(w http.ResponseWriter, items reflect.Value) {
	w.Header().Set("Content-Type", "application/json")
	to := json.NewEncoder(w)
	_, _ = io.WriteString(w, `{"items":[`)
	for i := range items.Len() {
		if i > 0 {
			_, _ = io.WriteString(w, ",")
		}
		if to.Encode(items.Index(i).Interface()) != nil {
			return // the client is gone
		}
	}
	_, _ = io.WriteString(w, "]}\n")
}

func answer(w http.ResponseWriter) func(any, error) error {
	return func(v any, err error) error {
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // the client is gone
		return nil
	}
}

func done(w http.ResponseWriter, err error) error {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}
