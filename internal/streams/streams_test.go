package streams

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestStreamIsSpliced(t *testing.T) {
	var r Registry
	w, err := r.Expect("node/n1")
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
	w, err := r.Expect("node/n1")
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
	first, err := r.Expect("n")
	if err != nil {
		t.Fatal(err)
	}
	for range Max - 1 {
		if _, err := r.Expect("n"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Expect("n"); !errors.Is(err, api.ErrUnavailable) {
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
	if _, err := r.Expect("n"); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	if _, err := first.Body(ended); err != nil && !errors.Is(err, api.ErrTimeout) {
		t.Error(err)
	}
}

func TestFailureReachesTheAsker(t *testing.T) {
	var r Registry
	w, err := r.Expect("node/n1")
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

// A peer that is removed streams nothing any more, to whoever reads it now.
func TestStreamsOfARemovedPeerEnd(t *testing.T) {
	var r Registry
	expect := func(from string) *Wait {
		t.Helper()
		w, err := r.Expect(from)
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
