package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"
)

const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
)

// notifyWithin bounds a write to a service manager that does not read its socket.
const notifyWithin = time.Second

// NotifyReady notifies systemd that the daemon is ready. It logs a failure.
func NotifyReady(log *slog.Logger) {
	if err := Notify(Ready); err != nil {
		log.Warn("notify systemd failed", "err", err)
	}
}

// Notify notifies systemd of the daemon's state (sd_notify). It does nothing unless
// NOTIFY_SOCKET is set.
func Notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// A leading @ means an abstract socket, in package net too.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(notifyWithin))
		_, err = c.Write([]byte(state))
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		return fmt.Errorf("notify systemd of %s: %w", state, err)
	}
	return nil
}
