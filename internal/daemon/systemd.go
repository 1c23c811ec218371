package daemon

import (
	"fmt"
	"net"
	"os"
	"time"
)

// What systemd is told.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
)

// notifyWithin bounds the wait for a service manager that does not read. Its socket
// buffers a few messages; the next write blocks.
const notifyWithin = time.Second

// Notify tells systemd about the daemon (sd_notify). Without a systemd that
// wants to know it does nothing.
func Notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// A leading @ is an abstract socket, which package net writes the same way.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell systemd %s: %w", state, err)
	}
	if err = c.SetWriteDeadline(time.Now().Add(notifyWithin)); err == nil {
		_, err = c.Write([]byte(state))
	}
	if cerr := c.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("tell systemd %s: %w", state, err)
	}
	return nil
}
