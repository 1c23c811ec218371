package sse_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/sse"
)

func TestRead(t *testing.T) {
	stream := ": hello\n\nevent: desired\nid: 7\ndata: {\"gen\":\ndata: 7}\n\n: alive\n\nevent:stream\r\ndata:{}\r\n\r\nevent: cut\ndata: off"
	var got []sse.Event
	lines := 0
	err := sse.Read(strings.NewReader(stream), func() { lines++ }, func(e sse.Event) error { got = append(got, e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Name != "desired" || got[0].ID != "7" || string(got[0].Data) != "{\"gen\":\n7}" || got[1].Name != "stream" || string(got[1].Data) != "{}" {
		t.Errorf("got events %+v, want desired and stream", got)
	}
	if lines != 14 {
		t.Errorf("got %d lines, want 14", lines)
	}
}

func TestReadStopsAtAnError(t *testing.T) {
	stop := errors.New("stop")
	calls := 0
	err := sse.Read(strings.NewReader("data: 1\n\ndata: 2\n\n"), nil, func(sse.Event) error { calls++; return stop })
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("got %v after %d calls, want stop after 1", err, calls)
	}
}

func TestReadReportsBrokenAndEndlessStreams(t *testing.T) {
	r, w := io.Pipe()
	_ = w.CloseWithError(errors.New("reset"))
	if err := sse.Read(r, nil, nil); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("a broken stream: %v, want ErrUnavailable", err)
	}
	endless := io.MultiReader(strings.NewReader("data: "), &repeat{left: sse.MaxEvent + 1})
	if err := sse.Read(endless, nil, nil); !errors.Is(err, api.ErrTooLarge) {
		t.Errorf("a line without an end: %v, want ErrTooLarge", err)
	}
}

// repeat is a reader of left bytes "x".
type repeat struct{ left int }

func (r *repeat) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), r.left)
	r.left -= n
	for i := range p[:n] {
		p[i] = 'x'
	}
	return n, nil
}
