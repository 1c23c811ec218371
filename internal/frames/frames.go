// Package frames divides a stream of bytes between a user and a process in a workload into frames:
// the process's input, output and exit code, and the size of its terminal. The tiers between do not
// read them.
//
// A frame is its kind (1 byte), the length of its payload (2 bytes, big endian) and the payload. A
// receiver ignores kinds that it does not know, so that a later release can add some.
//
//	w := frames.NewWriter(conn)
//	_, err := w.Stream(frames.Stdout).Write(p)
//	r := frames.NewReader(conn)
//	kind, payload, err := r.Next()
package frames

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
)

// Kind is the kind of a frame.
type Kind byte

// The kinds. Stdin, EOF and Resize are for the process, the others come from it.
const (
	Stdin  Kind = 1 + iota
	Stdout      // and stderr, if the process has a terminal
	Stderr
	Resize // the terminal's size
	EOF    // the end of Stdin
	Exit   // the process ended; its code; the last frame
	Error  // the process could not be started, or its end is unknown; an api.Problem; the last frame
)

const (
	// Max is the maximum length of a payload, in bytes. Writers split longer ones.
	Max = 32 << 10

	header = 3
	// exitFrame is the length of an Exit frame.
	exitFrame = header + 4
)

// Writer writes frames. It is safe for concurrent use. Each frame is one Write of the stream, which
// blocks while the stream does.
type Writer struct {
	mu  sync.Mutex // held while writing, so that frames do not mix
	to  io.Writer
	buf []byte
}

// NewWriter returns a Writer to a stream.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write writes the payload in one frame or, if it is longer than Max, in several.
func (w *Writer) Write(k Kind, payload []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		part := payload[:min(len(payload), Max)]
		payload = payload[len(part):]
		w.buf = append(w.buf[:0], byte(k))
		w.buf = binary.BigEndian.AppendUint16(w.buf, uint16(len(part)))
		w.buf = append(w.buf, part...)
		if _, err := w.to.Write(w.buf); err != nil {
			return err
		}
		if len(payload) == 0 {
			return nil
		}
	}
}

// Stream returns a writer of frames of one kind.
func (w *Writer) Stream(k Kind) io.Writer { return stream{w, k} }

type stream struct {
	w *Writer
	k Kind
}

// Write implements io.Writer.
func (s stream) Write(p []byte) (int, error) {
	if err := s.w.Write(s.k, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Resize writes the size of the terminal.
func (w *Writer) Resize(width, height uint16) error {
	return w.Write(Resize, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, width), height))
}

// Exit writes the exit code of the process.
func (w *Writer) Exit(code int) error {
	return w.Write(Exit, binary.BigEndian.AppendUint32(nil, uint32(int32(code))))
}

// Fail writes the error that took the place of an exit code.
func (w *Writer) Fail(err error) error {
	p := *call.Problem(err)
	const most = Max / 8 // JSON can take six bytes for one
	if len(p.Detail) > most {
		p.Detail = p.Detail[:most] + "…"
	}
	p.Errors = nil
	text, _ := json.Marshal(p) // strings and numbers
	return w.Write(Error, text)
}

// Reader reads frames. It is not safe for concurrent use.
type Reader struct {
	from io.Reader
	buf  []byte
}

// NewReader returns a Reader of a stream.
func NewReader(from io.Reader) *Reader { return &Reader{from: from} }

// Next returns the next frame. The payload is valid until the next call. It fails with io.EOF at the
// end of the stream, with io.ErrUnexpectedEOF within a frame, and with ErrInvalid if the stream has
// no frames.
func (r *Reader) Next() (Kind, []byte, error) {
	if r.buf == nil {
		r.buf = make([]byte, Max)
	}
	head := r.buf[:header]
	if _, err := io.ReadFull(r.from, head); err != nil {
		return 0, nil, err
	}
	k, n := Kind(head[0]), int(binary.BigEndian.Uint16(head[1:]))
	if k == 0 || n > Max {
		return 0, nil, fmt.Errorf("frame of kind %d with %d bytes: want a kind and at most %d bytes: %w", k, n, Max, api.ErrInvalid)
	}
	payload := r.buf[:n]
	if _, err := io.ReadFull(r.from, payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return k, payload, nil
}

// Size decodes the payload of a Resize frame.
func Size(payload []byte) (width, height uint16, err error) {
	if len(payload) != 4 {
		return 0, 0, fmt.Errorf("size of a terminal in %d bytes: want 4: %w", len(payload), api.ErrInvalid)
	}
	return binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:]), nil
}

// Code decodes the payload of an Exit frame.
func Code(payload []byte) (int, error) {
	if len(payload) != 4 {
		return 0, fmt.Errorf("exit code in %d bytes: want 4: %w", len(payload), api.ErrInvalid)
	}
	return int(int32(binary.BigEndian.Uint32(payload))), nil
}

// Problem decodes the payload of an Error frame.
func Problem(payload []byte) error { return call.ParseProblem("application/problem+json", 0, payload) }

// Tail keeps the end of a stream, to learn the exit code without reading the frames. The zero value
// is ready.
type Tail struct {
	end [exitFrame]byte
	n   int64
}

// Add adds the next bytes of the stream.
func (t *Tail) Add(p []byte) {
	t.n += int64(len(p))
	if len(p) >= exitFrame {
		copy(t.end[:], p[len(p)-exitFrame:])
		return
	}
	copy(t.end[:], t.end[len(p):])
	copy(t.end[exitFrame-len(p):], p)
}

// Len returns the length of the stream in bytes.
func (t *Tail) Len() int64 { return t.n }

// Exit returns the exit code, if the last frame has one.
func (t *Tail) Exit() (code int, ok bool) {
	if t.n < exitFrame || Kind(t.end[0]) != Exit || t.end[1] != 0 || t.end[2] != 4 {
		return 0, false
	}
	code, err := Code(t.end[header:])
	return code, err == nil
}
