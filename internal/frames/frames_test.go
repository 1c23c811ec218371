package frames_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/frames"
)

func TestFramesRoundTrip(t *testing.T) {
	var b bytes.Buffer
	w := frames.NewWriter(&b)
	long := strings.Repeat("0123456789", frames.Max/5)
	if n, err := w.Stream(frames.Stdout).Write([]byte(long)); n != len(long) || err != nil {
		t.Fatal(n, err)
	}
	for _, err := range []error{w.Resize(120, 40), w.Write(frames.EOF, nil), w.Exit(-1)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r := frames.NewReader(&b)
	got := ""
	for {
		k, p, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if len(p) > frames.Max {
			t.Errorf("payload of %d bytes, want at most %d", len(p), frames.Max)
		}
		switch k {
		case frames.Stdout:
			got += string(p)
		case frames.Resize:
			if w, h, err := frames.Size(p); w != 120 || h != 40 || err != nil {
				t.Errorf("size: got %d, %d, %v, want 120, 40", w, h, err)
			}
		case frames.EOF:
		case frames.Exit:
			if code, err := frames.Code(p); code != -1 || err != nil {
				t.Errorf("code: got %d, %v, want -1", code, err)
			}
			if got != long {
				t.Errorf("output: got %d bytes, want %d", len(got), len(long))
			}
			if _, _, err := r.Next(); !errors.Is(err, io.EOF) {
				t.Errorf("after the last frame: %v, want EOF", err)
			}
			return
		default:
			t.Errorf("frame of kind %d", k)
		}
	}
}

func TestErrorsKeepTheirKind(t *testing.T) {
	var b bytes.Buffer
	long := strings.Repeat("\x01", 2*frames.Max)
	if err := frames.NewWriter(&b).Fail(fmt.Errorf("%s: %w", long, api.ErrNotFound)); err != nil {
		t.Fatal(err)
	}
	k, p, err := frames.NewReader(&b).Next()
	if k != frames.Error || err != nil || !errors.Is(frames.Problem(p), api.ErrNotFound) || b.Len() > 0 {
		t.Errorf("got a frame of kind %d (%v), error %.80v and %d further bytes, want one frame with ErrNotFound", k, err, frames.Problem(p), b.Len())
	}
}

func TestMalformedFramesAreRefused(t *testing.T) {
	for text, want := range map[string]error{
		"":              io.EOF,
		"\x01":          io.ErrUnexpectedEOF,
		"\x01\x00\x02a": io.ErrUnexpectedEOF,
		"\x00\x00\x00":  api.ErrInvalid,
		"\x01\xff\xff":  api.ErrInvalid,
	} {
		if _, _, err := frames.NewReader(strings.NewReader(text)).Next(); !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", text, err, want)
		}
	}
	if _, _, err := frames.Size(nil); !errors.Is(err, api.ErrInvalid) {
		t.Error(err)
	}
	if _, err := frames.Code([]byte{1}); !errors.Is(err, api.ErrInvalid) {
		t.Error(err)
	}
}

func TestTailFindsTheExitCode(t *testing.T) {
	var b bytes.Buffer
	w := frames.NewWriter(&b)
	_ = w.Write(frames.Stdout, []byte("some output"))
	_ = w.Exit(7)
	for _, size := range []int{1, 2, 3, 5, 7, 100} {
		var tail frames.Tail
		rest := b.Bytes()
		if _, ok := tail.Exit(); ok {
			t.Error("an empty stream has an exit code")
		}
		for len(rest) > 0 {
			n := min(size, len(rest))
			tail.Add(rest[:n])
			rest = rest[n:]
		}
		if code, ok := tail.Exit(); code != 7 || !ok || tail.Len() != int64(b.Len()) {
			t.Errorf("in parts of %d bytes: got code %d, %t after %d bytes, want 7 after %d", size, code, ok, tail.Len(), b.Len())
		}
	}
	var tail frames.Tail
	tail.Add(b.Bytes()[:b.Len()-1])
	if code, ok := tail.Exit(); ok {
		t.Errorf("a stream that broke within its exit code has code %d", code)
	}
}

// FuzzReader: any bytes are frames or an error, no frame is longer than Max, and what was read can be
// written again.
func FuzzReader(f *testing.F) {
	f.Add([]byte("\x02\x00\x05hello\x06\x00\x04\x00\x00\x00\x07"))
	f.Add([]byte("\x04\x00\x04\x00\x50\x00\x18\x05\x00\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := frames.NewReader(bytes.NewReader(in))
		var again bytes.Buffer
		w := frames.NewWriter(&again)
		for {
			k, p, err := r.Next()
			if err != nil {
				break
			}
			if len(p) > frames.Max {
				t.Fatalf("payload of %d bytes", len(p))
			}
			_, _, _ = frames.Size(p)
			_, _ = frames.Code(p)
			_ = frames.Problem(p)
			if err := w.Write(k, p); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(in, again.Bytes()) {
			t.Errorf("read and written: got %q, want a prefix of %q", again.Bytes(), in)
		}
	})
}
