package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// heard is closed when a marker was written.
type heard struct {
	bytes.Buffer
	mark []byte
	seen context.CancelFunc
}

func (h *heard) Write(p []byte) (int, error) {
	if bytes.Contains(p, h.mark) {
		h.seen()
	}
	return h.Buffer.Write(p)
}

func TestPacketsOfADevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("packet sockets need root")
	}
	to, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	ctx, cancel := context.WithCancel(t.Context())
	h := &heard{mark: []byte("a mark that nobody else sends"), seen: cancel}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, "lo", h, Limits{For: time.Minute}) }()
	for err = nil; ctx.Err() == nil && err == nil; {
		_, err = to.WriteTo(h.mark, to.LocalAddr())
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	file := h.Bytes()
	if m := binary.LittleEndian.Uint32(file); m != magicNanoseconds {
		t.Errorf("the file begins with %x", m)
	}
	for at, n := fileHeader, 0; at < len(file); n++ {
		size := int(binary.LittleEndian.Uint32(file[at+8:]))
		if at += packetHeader + size; at > len(file) {
			t.Fatalf("packet %d is cut", n)
		}
	}
}

func TestCaptureIsBounded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("packet sockets need root")
	}
	ln, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = ln.WriteTo(make([]byte, 1000), ln.LocalAddr())
			}
		}
	}()
	var file bytes.Buffer
	if err := Run(t.Context(), "lo", &file, Limits{Bytes: 10_000}); err != nil {
		t.Error(err)
	}
	close(stop)
	<-sent
	ln.Close()
	if file.Len() > 10_000 || file.Len() == fileHeader {
		t.Errorf("the file has %d bytes", file.Len())
	}
	if err := Run(t.Context(), "nosuchdevice", &file, Limits{}); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("no such device: %v", err)
	}
}
