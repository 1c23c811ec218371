package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestStreamIsSpliced(t *testing.T) {
	var r Registry
	w, err := r.Expect("node/n1", wire.StreamRequest{})
	if err != nil {
		t.Fatal(err)
	}
	delivered := make(chan error, 1)
	go func() { delivered <- r.Deliver(t.Context(), w.ID(), "node/n1", strings.NewReader("lines")) }()
	body, err := w.Body(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(body); string(b) != "lines" {
		t.Errorf("read %q", b)
	}
	select {
	case err := <-delivered:
		t.Errorf("the dialled end was let go before the asker closed: %v", err)
	default:
	}
	w.Close()
	if err := <-delivered; err != nil {
		t.Error(err)
	}
}

func TestStreamOfAnotherIsRefused(t *testing.T) {
	var r Registry
	w, err := r.Expect("node/n1", wire.StreamRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Deliver(t.Context(), w.ID(), "node/n2", nil); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("another's stream: %v", err)
	}
	w.Close()
	w.Close()
	if err := r.Deliver(t.Context(), w.ID(), "node/n1", nil); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("after the end: %v", err)
	}
}

func TestStreamsAreBoundedAndCountOnce(t *testing.T) {
	var r Registry
	first, err := r.Expect("n", wire.StreamRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for range 127 {
		if _, err := r.Expect("n", wire.StreamRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Expect("n", wire.StreamRequest{}); !errors.Is(err, api.ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Deliver(ended, first.ID(), "n", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a delivery whose request ended: %v", err)
	}
	if err := r.Deliver(t.Context(), first.ID(), "n", nil); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a second delivery: %v", err)
	}
	first.Close()
	if _, err := r.Expect("n", wire.StreamRequest{}); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	if _, err := first.Body(ended); err != nil && !errors.Is(err, api.ErrTimeout) {
		t.Error(err)
	}
}

func TestFailureReachesTheAsker(t *testing.T) {
	var r Registry
	w, err := r.Expect("node/n1", wire.StreamRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := r.Fail(w.ID(), "node/n1", api.ErrGone); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Body(t.Context()); !errors.Is(err, api.ErrGone) {
		t.Errorf("the asker is told %v", err)
	}
}

// The streams of a removed peer end, even those that are being read.
func TestStreamsOfARemovedPeerEnd(t *testing.T) {
	var r Registry
	expect := func(from string) *Wait {
		t.Helper()
		w, err := r.Expect(from, wire.StreamRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	open, awaited, other := expect("node/n1"), expect("node/n1"), expect("node/n2")
	delivered := make(chan error, 1)
	go func() { delivered <- r.Deliver(t.Context(), open.ID(), "node/n1", strings.NewReader("lines")) }()
	if _, err := open.Body(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.End("node/n1")
	if err := <-delivered; err != nil {
		t.Error(err)
	}
	if _, err := awaited.Body(t.Context()); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("awaited: %v", err)
	}
	if n := r.Open(); n != 1 {
		t.Errorf("%d streams are open, want the other node's", n)
	}
	open.Close()
	other.Close()
}

// One user, then all users of one tenant, follow any number of logs. Others can still follow theirs, at
// the requesting tier and at the dialling tier, and the user can send other requests.
func TestFollowedLogsLeaveRoomForOthers(t *testing.T) {
	kind := "logs"
	logs := func(tenant api.Tenant, person string) wire.StreamRequest {
		kind = map[string]string{"logs": "exec", "exec": "attach", "attach": "portforward", "portforward": "logs"}[kind] // share their places
		return wire.StreamRequest{Kind: kind, For: For(tenant, person)}
	}
	var r Registry
	p := NewPlaces()
	asked := func(req wire.StreamRequest) error { _, err := r.Expect("cluster/a", req); return err }
	dialled := func(req wire.StreamRequest) error {
		_, _, refused, told := p.Take(t.Context(), req)
		if refused == nil && !told {
			t.Fatal("a stream that is not refused has no place")
		}
		return refused
	}
	for tier, take := range map[string]func(wire.StreamRequest) error{"asked": asked, "dialled": dialled} {
		count := 0
		for range 2000 {
			if take(logs("acme/lab", "acme/lab/loud")) == nil {
				count++
			}
		}
		if count != 64 {
			t.Errorf("%s: one person follows %d logs, want 64", tier, count)
		}
		if err := take(wire.StreamRequest{Kind: "api", For: For("acme/lab", "acme/lab/loud")}); err != nil {
			t.Errorf("%s: a request of the same person: %v", tier, err)
		}
		if err := take(logs("acme", "acme/quiet")); err != nil {
			t.Errorf("%s: a log of another person: %v", tier, err)
		}
		for i := range 20 {
			for range 64 {
				_ = take(logs(api.Tenant(fmt.Sprint("t", i)), fmt.Sprint("p", i)))
			}
		}
		if err := take(logs("new", "new/ann")); err != nil {
			t.Errorf("%s: a log of a tenant that has none: %v", tier, err)
		}
	}
}

// A requester whose place is evicted gets an error, or its stream ends.
func TestAStreamThatLosesItsPlaceEnds(t *testing.T) {
	p := NewPlaces()
	var ends []context.Context
	for i := range 4 {
		for j := range 64 {
			ctx, _, refused, _ := p.Take(t.Context(), wire.StreamRequest{Kind: "logs", For: For(api.Tenant(fmt.Sprint("t", i)), fmt.Sprint("p", j%2))})
			if refused != nil {
				t.Fatal(refused)
			}
			ends = append(ends, ctx)
		}
	}
	if _, _, refused, _ := p.Take(t.Context(), wire.StreamRequest{Kind: "logs", For: For("new", "p")}); refused != nil {
		t.Fatal(refused)
	}
	ended := 0
	for _, ctx := range ends {
		if ctx.Err() != nil {
			ended++
		}
	}
	if ended != 1 {
		t.Errorf("%d streams ended for one newcomer, want 1", ended)
	}
}
