package relaywire

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

var secret = []byte("0123456789abcdef")

func TestMessagesSurviveEncoding(t *testing.T) {
	h := Header{Slot: 7, Ticket: 1<<63 + 5}
	got, rest, ok := ParseFrame(append(AppendFrame(nil, h), "secret"...))
	if !ok || got != h || string(rest) != "secret" {
		t.Fatalf("frame: %v %q %v", got, rest, ok)
	}
	for _, r := range []Request{{Slot: 1, Seq: 2}, {Slot: 1 << 31, Seq: 1 << 63, Bind: true}, {Slot: 3, Seq: 4, Late: 45 * time.Second}} {
		b := r.Append([]byte("before"), secret)[6:]
		if got, err := ParseRequest(b); err != nil || got != r || !Authentic(b, secret) {
			t.Errorf("request %+v: %+v %v", r, got, err)
		}
		if r.Late > 0 && len(b) < 2*AnswerLen || len(b) < AnswerLen {
			t.Errorf("a request of %d bytes is answered with more", len(b))
		}
	}
	for _, a := range []Answer{
		{Result: Bound, Slot: 1, Seq: 2, Last: 3, Addr: netip.MustParseAddrPort("192.0.2.1:99"), Alt: 7},
		{Late: true, Result: Seen, Slot: 1, Seq: 2, Addr: netip.MustParseAddrPort("[2001:db8::1]:65535")},
	} {
		if got, err := ParseAnswer(a.Append(nil, secret), secret); err != nil || got != a {
			t.Errorf("answer %+v: %+v %v", a, got, err)
		}
	}
	to := netip.MustParseAddrPort("198.51.100.7:9000")
	msg := append(AppendFrame(AppendTo(nil, to), h), 'x')
	if at, frame, ok := ParseTo(msg); !ok || at != to || len(frame) != HeaderLen+1 {
		t.Errorf("to: %v %d %v", at, len(frame), ok)
	}
}

func TestChangedBitsAreDetected(t *testing.T) {
	req := Request{Slot: 9, Seq: 10, Bind: true}.Append(nil, secret)
	ans := Answer{Slot: 9, Seq: 10, Addr: netip.MustParseAddrPort("192.0.2.1:99")}.Append(nil, secret)
	for _, whole := range [][]byte{req, ans} {
		for i := range whole {
			b := bytes.Clone(whole)
			b[i] ^= 1
			if Authentic(b, secret) {
				t.Fatalf("byte %d may change", i)
			}
		}
	}
	if Authentic(req, nil) || Authentic(Request{}.Append(nil, nil), nil) {
		t.Error("an empty secret authenticates")
	}
	if _, err := ParseAnswer(req, secret); err == nil {
		t.Error("a request passes for an answer")
	}
}

func TestStreamKeepsMessageBoundaries(t *testing.T) {
	var b []byte
	for _, m := range []string{"one", "", "three"} {
		b = AppendMessage(b, []byte(m))
	}
	r := bytes.NewReader(b[:len(b)-1])
	for _, want := range []string{"one", ""} {
		if got, err := ReadMessage(r, nil); err != nil || string(got) != want {
			t.Fatalf("got %q %v, want %q", got, err, want)
		}
	}
	if _, err := ReadMessage(r, make([]byte, 64)); err == nil || err == io.EOF {
		t.Fatalf("a message that was cut off: %v", err)
	}
	if _, err := ReadMessage(r, nil); err != io.EOF {
		t.Fatalf("the end: %v", err)
	}
	if got := AppendMessage(nil, make([]byte, 1<<16)); len(got) != 0 {
		t.Fatal("a message that no length can tell")
	}
}

// A peer that does not read costs a bounded queue only.
func TestOutboxIsBounded(t *testing.T) {
	o, sent := NewOutbox(), 0
	for o.Put(make([]byte, 1000), make([]byte, 400)) {
		sent++
	}
	if sent*1402 > outboxBytes || sent*1402 < outboxBytes-1402 {
		t.Errorf("%d bytes are queued", sent*1402)
	}
	near, far := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- o.Run(t.Context(), near) }()
	for range sent {
		if msg, err := ReadMessage(far, nil); err != nil || len(msg) != 1400 {
			t.Fatal(len(msg), err)
		}
	}
	if !o.Put([]byte("room again")) {
		t.Error("what is written still takes room")
	}
	if msg, err := ReadMessage(far, nil); err != nil || string(msg) != "room again" {
		t.Error(string(msg), err)
	}
	_ = near.Close()
	o.Put()
	if err := <-done; err != nil && err != io.ErrClosedPipe {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(AppendFrame(nil, Header{1, 2}))
	f.Add(Request{Slot: 1, Late: time.Minute}.Append(nil, secret))
	f.Add(Answer{Addr: netip.MustParseAddrPort("192.0.2.1:99")}.Append(nil, secret))
	f.Add(append(AppendTo(nil, netip.MustParseAddrPort("192.0.2.1:99")), AppendFrame(nil, Header{1, 2})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, rest, ok := ParseFrame(b); ok && !bytes.Equal(append(AppendFrame(nil, h), rest...), b) {
			t.Error("a frame that says otherwise when it is said again")
		}
		if r, err := ParseRequest(b); err == nil {
			if again, err := ParseRequest(r.Append(nil, secret)); err != nil || again != r || len(r.Append(nil, secret)) != len(b) {
				t.Errorf("%+v: %+v %v", r, again, err)
			}
		}
		if a, err := ParseAnswer(b, secret); err == nil && !bytes.Equal(a.Append(nil, secret), b) {
			t.Errorf("%+v is ambiguous", a)
		}
		if to, frame, ok := ParseTo(b); ok && len(AppendTo(nil, to))+len(frame) != len(b) {
			t.Error("a message for another relay loses bytes")
		}
		_, _ = ReadMessage(bytes.NewReader(b), nil)
	})
}
