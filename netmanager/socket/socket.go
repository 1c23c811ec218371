// Package socket serves a netmanager's API on a unix socket: attachments and the
// cluster's messages for the node engine, and what people ask of the network.
// What is true and what to do belongs to whoever is the Overlay; clients are
// internal/netsock's. Only root, and who runs the netmanager, may connect.
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
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/netsock"
)

// Overlay is what the socket serves. Its methods are safe for concurrent use, and
// their errors are of api's kinds.
//
// Attach, Detach and Drain may be repeated; what they say is durable when they
// return. Attachments are in the order of their keys.
//
// Trace says what would happen to a new flow; an instance that is not on this
// node is ErrNotFound.
//
// Capture writes the packets of an instance as a pcap file, until a bound of what
// to capture is reached or ctx ends, which is no error.
//
// Events writes events until ctx ends or write fails. There is one reader; a new
// one ends the earlier one's.
//
// Down takes a message of the cluster, in order; Link that it is reached or not.
type Overlay interface {
	Attach(ctx context.Context, a api.Attach) (api.Attached, error)
	Detach(ctx context.Context, k api.Key) error
	Drain(ctx context.Context, k api.Key) error
	Attachments(ctx context.Context) ([]api.Attached, error)
	Status(ctx context.Context) (api.NetStatus, error)
	Routes(ctx context.Context) ([]api.RouteStatus, error)
	Peers(ctx context.Context) ([]api.PeerStatus, error)
	Trace(ctx context.Context, from api.InstanceID, to string) (api.NetTrace, error)
	Capture(ctx context.Context, what Capture, w io.Writer) error
	Events(ctx context.Context, write func(api.NetEvent) error) error
	Down(ctx context.Context, d api.NetDown) error
	Link(ctx context.Context, up bool) error
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
		var a api.Attach
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
		return answer(w)(api.Attachments{Items: all}, err)
	})
	const one = netsock.Attachments + "/{instance}/{epoch}"
	handle("DELETE "+one, withKey(o.Detach))
	handle("POST "+one+"/drain", withKey(o.Drain))
	handle("GET "+netsock.Status, func(w http.ResponseWriter, r *http.Request) error { return answer(w)(anyOf(o.Status(r.Context()))) })
	handle("GET "+netsock.Routes, func(w http.ResponseWriter, r *http.Request) error {
		return list[api.RouteStatus](w)(o.Routes(r.Context()))
	})
	handle("GET "+netsock.Peers, func(w http.ResponseWriter, r *http.Request) error {
		return list[api.PeerStatus](w)(o.Peers(r.Context()))
	})
	handle("GET "+netsock.Trace, func(w http.ResponseWriter, r *http.Request) error {
		from, err := api.ParseInstanceID(r.FormValue("from"))
		if err != nil {
			return err
		}
		to := r.FormValue("to")
		if to == "" || len(to) > 255 {
			return fmt.Errorf("to is missing or too long: give a name or an address: %w", api.ErrInvalid)
		}
		return answer(w)(anyOf(o.Trace(r.Context(), from, to)))
	})
	captures := newCaptures()
	handle("GET "+netsock.Capture, func(w http.ResponseWriter, r *http.Request) error { return captures.serve(o, w, r) })
	handle("GET "+netsock.Up, func(w http.ResponseWriter, r *http.Request) error { return events(o, w, r) })
	handle("POST "+netsock.Down, func(w http.ResponseWriter, r *http.Request) error {
		var d api.NetDown
		if err := read(r, netsock.MaxMessage, &d); err != nil {
			return err
		}
		return done(w, o.Down(r.Context(), d))
	})
	handle("POST "+netsock.Link, func(w http.ResponseWriter, r *http.Request) error {
		var l api.NetLink
		if err := read(r, netsock.MaxRequest, &l); err != nil {
			return err
		}
		return done(w, o.Link(r.Context(), l.Up))
	})
	handle("/", func(_ http.ResponseWriter, r *http.Request) error {
		return fmt.Errorf("%s %s: the netmanager has no such path: %w", r.Method, r.URL.Path, api.ErrNotFound)
	})
	return mux
}

// checkAttach is the door: what is let in is sound, whether it can be done or not.
func checkAttach(a api.Attach) error {
	if _, err := api.ParseInstanceID(string(a.Instance)); err != nil {
		return err
	}
	switch {
	case len(a.NetNS) == 0 || len(a.NetNS) > 4096 || a.NetNS[0] != '/':
		return fmt.Errorf("attach %s: netns %.80q is no absolute path: %w", a.Key, a.NetNS, api.ErrInvalid)
	case len(a.Ports) > api.MaxPorts:
		return fmt.Errorf("attach %s: %d ports, at most %d: %w", a.Key, len(a.Ports), api.MaxPorts, api.ErrInvalid)
	case a.BandwidthIn < 0 || a.BandwidthOut < 0:
		return fmt.Errorf("attach %s: a bandwidth is less than nothing: %w", a.Key, api.ErrInvalid)
	}
	for _, p := range a.Ports {
		if p.Host == 0 || p.Instance == 0 || p.Protocol != "tcp" && p.Protocol != "udp" && p.Protocol != "sctp" {
			return fmt.Errorf("attach %s: port %s: %w", a.Key, p, api.ErrInvalid)
		}
	}
	return nil
}

func withKey(fn func(context.Context, api.Key) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		id, err := api.ParseInstanceID(r.PathValue("instance"))
		if err != nil {
			return err
		}
		epoch, err := strconv.ParseUint(r.PathValue("epoch"), 10, 64)
		if err != nil {
			return fmt.Errorf("epoch %.40q is no number: %w", r.PathValue("epoch"), api.ErrInvalid)
		}
		return done(w, fn(r.Context(), api.Key{Instance: id, Epoch: api.Epoch(epoch)}))
	}
}

func events(o Overlay, w http.ResponseWriter, r *http.Request) error {
	s := &stream{w: w, to: http.NewResponseController(w), kind: "application/x-ndjson"}
	err := o.Events(r.Context(), func(e api.NetEvent) error {
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

// writeTime is how long a reader of a stream may be stuck.
const writeTime = 30 * time.Second

// stream sends each write at once. What fails before the first one can still be
// answered as an error.
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
		return fmt.Errorf("%s %s: the body cannot be read: %w: %w", r.Method, r.URL.Path, api.ErrInvalid, err)
	}
	return nil
}

func anyOf[T any](v T, err error) (any, error) { return v, err }

// list answers with a list, item by item: a thousand routes as one text take more
// memory than all that is known of them.
func list[T any](w http.ResponseWriter) func([]T, error) error {
	return func(items []T, err error) error {
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		to := json.NewEncoder(w)
		_, _ = io.WriteString(w, `{"items":[`)
		for i, item := range items {
			if i > 0 {
				_, _ = io.WriteString(w, ",")
			}
			if to.Encode(item) != nil {
				return nil // who asked is gone
			}
		}
		_, _ = io.WriteString(w, "]}\n")
		return nil
	}
}

func answer(w http.ResponseWriter) func(any, error) error {
	return func(v any, err error) error {
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // who asked is gone
		return nil
	}
}

func done(w http.ResponseWriter, err error) error {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}
