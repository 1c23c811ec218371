package netlab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// Capture records the frames that a device receives.
type Capture struct {
	mu     sync.Mutex // guards the field below
	frames []captured
}

type captured struct {
	at   time.Time
	data []byte
}

// Capture starts to record the frames that the host's device receives.
func (h *Host) Capture(dev string) *Capture {
	h.lab.t.Helper()
	c, file := &Capture{}, h.packets(dev)
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := file.Read(buf)
			if errors.Is(err, os.ErrClosed) {
				return
			} else if err != nil {
				continue
			}
			c.mu.Lock()
			c.frames = append(c.frames, captured{time.Now(), bytes.Clone(buf[:n])})
			c.mu.Unlock()
		}
	}()
	return c
}

// Count returns the number of frames.
func (c *Capture) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.frames)
}

// Contains reports whether a frame contains the marker.
func (c *Capture) Contains(marker []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.frames {
		if bytes.Contains(f.data, marker) {
			return true
		}
	}
	return false
}

// WriteTo writes the frames as a pcap file.
func (c *Capture) WriteTo(w io.Writer) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const magic, linkEthernet = 0xa1b23c4d, 1 // with nanoseconds
	b := binary.LittleEndian.AppendUint32(nil, magic)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, 1<<16)
	b = binary.LittleEndian.AppendUint32(b, linkEthernet)
	for _, f := range c.frames {
		b = binary.LittleEndian.AppendUint32(b, uint32(f.at.Unix()))
		b = binary.LittleEndian.AppendUint32(b, uint32(f.at.Nanosecond()))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f.data)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f.data)))
		b = append(b, f.data...)
	}
	n, err := w.Write(b)
	return int64(n), err
}
