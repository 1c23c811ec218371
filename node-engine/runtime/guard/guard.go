// Package guard kills workloads at a deadline even if the node engine does not run: an exclusive
// instance must stop when its lease ends.
//
// The guard is a helper process with a session and a cgroup of its own, so that it outlives the
// engine and its service. It receives orders on a unix socket in its directory and saves the
// deadlines in a file there. Deadlines are on CLOCK_BOOTTIME, which continues while the machine
// sleeps and cannot be set. The guard ends when it has no deadline and no client. A group that
// is empty at its deadline is checked again, for as long as a pending start may add a process.
//
//	c := guard.New(dir)
//	err := c.Set(ctx, key, cgroup, time.Now().Add(lease)) // starts the guard if necessary
//	err = c.Lift(ctx, key)
package guard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/helper"
	"golang.org/x/sys/unix"
)

const (
	socketName  = "guard.sock"
	callTimeout = 5 * time.Second
	cgroupPath  = "/treeline-guard"
)

// order is a request to the guard.
type order struct {
	Op       string `json:"op"` // "set", "lift" or "list"
	Key      string `json:"key,omitempty"`
	deadline `json:"deadline"`
}

// deadline is when to kill a control group.
type deadline struct {
	Target target `json:"target"`
	Until  int64  `json:"until"` // nanoseconds of CLOCK_BOOTTIME
}

type target struct {
	Cgroup string `json:"cgroup"` // path below the cgroup root
}

type answer struct {
	Error string              `json:"error,omitempty"`
	Held  map[string]deadline `json:"held,omitempty"`
}

// Client sends orders to the guard, and starts it if it does not run. It is safe for concurrent
// use.
type Client struct {
	dir string

	mu   sync.Mutex // guards conn and in, and is held for one exchange
	conn net.Conn   // nil: not connected
	in   *bufio.Reader
}

// New returns a client of the guard of a directory. Most nodes never need the guard: the first
// Set creates the directory and starts the guard.
func New(dir string) *Client { return &Client{dir: dir} }

// Set schedules a kill of the processes of a cgroup at until. It replaces an earlier deadline of k.
func (c *Client) Set(ctx context.Context, k wire.Key, cgroup string, until time.Time) error {
	d := deadline{Target: target{cgroup}, Until: boottime() + int64(time.Until(until))}
	if _, err := c.do(ctx, order{Op: "set", Key: k.String(), deadline: d}); err != nil {
		return fmt.Errorf("set the deadline of %s: %w", k, err)
	}
	return nil
}

// Lift removes the deadline of k. It succeeds if there is none.
func (c *Client) Lift(ctx context.Context, k wire.Key) error {
	if _, err := os.Stat(c.dir); errors.Is(err, fs.ErrNotExist) {
		return nil // no guard was ever started
	}
	if _, err := c.do(ctx, order{Op: "lift", Key: k.String()}); err != nil {
		return fmt.Errorf("remove the deadline of %s: %w", k, err)
	}
	return nil
}

// Close disconnects from the guard, which keeps its deadlines.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.disconnect()
}

func (c *Client) disconnect() error {
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	c.conn = nil
	return err
}

// do sends an order. If the guard does not answer it starts a new one, which reads the
// deadlines from the file.
func (c *Client) do(ctx context.Context, o order) (answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, err := c.exchange(ctx, o)
	if err != nil && ctx.Err() == nil {
		if err = c.connect(ctx); err == nil {
			a, err = c.exchange(ctx, o)
		}
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}

func (c *Client) exchange(ctx context.Context, o order) (a answer, err error) {
	if c.conn == nil {
		return a, net.ErrClosed
	}
	until := time.Now().Add(callTimeout)
	if t, ok := ctx.Deadline(); ok && t.Before(until) {
		until = t
	}
	_ = c.conn.SetDeadline(until)
	if err := json.NewEncoder(c.conn).Encode(o); err != nil {
		return a, err
	}
	line, err := c.in.ReadBytes('\n')
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(line, &a)
}

func (c *Client) connect(ctx context.Context) error {
	_ = c.disconnect()
	dir, err := filepath.Abs(c.dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for range 3 { // the guard may be ending, or another engine may be starting it
		conn, err := dial(ctx, dir)
		if err != nil {
			if err := start(ctx, dir); err != nil {
				return fmt.Errorf("start guard: %w", err)
			}
			continue
		}
		c.conn, c.in = conn, bufio.NewReader(conn)
		if _, err := c.exchange(ctx, order{Op: "list"}); err == nil {
			return nil
		}
		_ = c.disconnect()
	}
	return fmt.Errorf("connect to the guard in %s: %w", dir, api.ErrUnavailable)
}

// dial uses a descriptor of the directory, because a socket's path may have at most 107 bytes.
func dial(ctx context.Context, dir string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return (&net.Dialer{Timeout: callTimeout}).DialContext(ctx, "unix", socketIn(d))
}

func socketIn(d *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socketName)
}

// start starts a guard and returns when it listens, or when another one does.
func start(ctx context.Context, dir string) error {
	cg, err := cgroup.Mounted()
	if err != nil {
		return err
	}
	group, err := cg.Create(cgroupPath, cgroup.Limits{})
	if err != nil {
		return err
	}
	return helper.Start(ctx, group, name, dir)
}

func boottime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // every Linux has it
	}
	return ts.Nano()
}
