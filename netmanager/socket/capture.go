package socket

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Capture bounds a capture of an instance's packets.
type Capture struct {
	Instance api.InstanceID
	For      time.Duration // up to MaxCaptureTime
	Bytes    int64         // of the file, up to MaxCaptureBytes
}

// The bounds of captures, and the defaults. Each capture takes kernel memory and slows the network.
const (
	MaxCaptures     = 4 // on a node, at a time
	MaxOfTenant     = 2 // of these
	MaxCaptureTime  = time.Hour
	MaxCaptureBytes = 1 << 30
	captureTime     = time.Minute
	captureBytes    = 64 << 20
)

type captures struct {
	mu  sync.Mutex // guards the fields below
	of  map[api.Tenant]int
	all int
}

func newCaptures() *captures { return &captures{of: map[api.Tenant]int{}} }

func (cs *captures) begin(t api.Tenant) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	switch {
	case cs.all == MaxCaptures:
		return fmt.Errorf("%d captures run on this node, the most at a time: end one, or wait: %w", MaxCaptures, api.ErrUnavailable)
	case cs.of[t] == MaxOfTenant:
		return fmt.Errorf("%d captures of %s run on this node, the most of one tenant: end one, or wait: %w", MaxOfTenant, t, api.ErrUnavailable)
	}
	cs.all++
	cs.of[t]++
	return nil
}

func (cs *captures) end(t api.Tenant) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.all--
	if cs.of[t]--; cs.of[t] == 0 {
		delete(cs.of, t)
	}
}

func (cs *captures) serve(o Overlay, w http.ResponseWriter, r *http.Request) error {
	id, err := api.ParseInstanceID(r.FormValue("instance"))
	if err != nil {
		return err
	}
	if err := cs.begin(id.Tenant()); err != nil {
		return err
	}
	defer cs.end(id.Tenant())
	c := Capture{Instance: id, For: captureTime, Bytes: captureBytes}
	if s := r.FormValue("seconds"); s != "" {
		n, err := strconv.ParseUint(s, 10, 16)
		if c.For = time.Duration(n) * time.Second; err != nil || c.For == 0 || c.For > MaxCaptureTime {
			return fmt.Errorf("seconds=%.40q is not a number from 1 to %d: %w", s, int(MaxCaptureTime.Seconds()), api.ErrInvalid)
		}
	}
	if s := r.FormValue("bytes"); s != "" {
		if c.Bytes, err = strconv.ParseInt(s, 10, 64); err != nil || c.Bytes <= 0 || c.Bytes > MaxCaptureBytes {
			return fmt.Errorf("bytes=%.40q is not a number from 1 to %d: %w", s, MaxCaptureBytes, api.ErrInvalid)
		}
	}
	s := &stream{w: w, to: http.NewResponseController(w), kind: "application/vnd.tcpdump.pcap"}
	if err := o.Capture(r.Context(), c, s); err != nil && !s.begun {
		return err // after the first byte the reader sees a short file
	}
	return nil
}
