// Package guard kills workloads at a deadline even if the node engine is dead:
// an exclusive instance must stop when its lease ends, whoever is there to stop it.
//
// A small process of our own binary holds the deadlines, in a session and a
// cgroup of its own, so that neither a crash nor a stop of the engine's service
// takes it along. It takes orders over a unix socket in the state directory,
// keeps them in a file beside it, counts on CLOCK_BOOTTIME, which goes on while
// the machine sleeps and which nobody sets, and ends by itself when it holds
// nothing and no engine is connected. A group that is empty at its deadline is
// looked at again for as long as a start that was under way may bring a process.
//
//	c, err := guard.Ensure(ctx, stateDir, "")
//	err = c.Set(ctx, key, target, time.Now().Add(lease))
//	err = c.Lift(ctx, key)
package guard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"golang.org/x/sys/unix"
)

const (
	socketName  = "guard.sock"
	callTimeout = 5 * time.Second
	cgroupPath  = "/treeline-guard"
)

// order is what a client asks.
type order struct {
	Op       string `json:"op"` // "set", "lift" or "list"
	Key      string `json:"key,omitempty"`
	Deadline `json:"deadline"`
}

// Deadline is when what is killed.
type Deadline struct {
	Target runtime.Target `json:"target"`
	Until  int64          `json:"until"` // nanoseconds of CLOCK_BOOTTIME
}

// answer is what the guard says to an order.
type answer struct {
	Error string              `json:"error,omitempty"`
	Held  map[string]Deadline `json:"held,omitempty"`
}

// Client gives orders to the guard and starts it again if it died. It is safe
// for concurrent use.
type Client struct {
	dir, exe string

	mu   sync.Mutex // guards conn and one exchange over it
	conn net.Conn
	in   *bufio.Reader
}

// Ensure connects to the guard of a state directory and starts it if there is
// none. exe is the program that calls Main; empty means this one. While the
// client is open the guard stays.
func Ensure(ctx context.Context, stateDir, exe string) (*Client, error) {
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("guard: find my own program: %w", err)
		}
	}
	abs, err := filepath.Abs(stateDir)
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	c := &Client{dir: abs, exe: exe}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c, c.connect(ctx)
}

// Set has target killed at until, whatever was set for k before.
func (c *Client) Set(ctx context.Context, k wire.Key, target runtime.Target, until time.Time) error {
	d := Deadline{Target: target, Until: boottime() + int64(time.Until(until))}
	if _, err := c.do(ctx, order{Op: "set", Key: k.String(), Deadline: d}); err != nil {
		return fmt.Errorf("guard %s: %w", k, err)
	}
	return nil
}

// Lift lets k live. Lifting what was never set succeeds.
func (c *Client) Lift(ctx context.Context, k wire.Key) error {
	if _, err := c.do(ctx, order{Op: "lift", Key: k.String()}); err != nil {
		return fmt.Errorf("lift guard of %s: %w", k, err)
	}
	return nil
}

// List is what the guard holds, by Key.String, so that an engine that has
// started anew can lift what it no longer knows.
func (c *Client) List(ctx context.Context) (map[string]Deadline, error) {
	a, err := c.do(ctx, order{Op: "list"})
	if err != nil {
		return nil, fmt.Errorf("list guard: %w", err)
	}
	return a.Held, nil
}

// Close lets go of the guard, which goes on with what it holds.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drop()
}

func (c *Client) drop() error {
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	c.conn = nil
	return err
}

// do gives an order, to a new guard if the old one is gone: it has read the
// deadlines from the file.
func (c *Client) do(ctx context.Context, o order) (answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, err := c.exchange(ctx, o)
	if err != nil && ctx.Err() == nil {
		c.drop()
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
	for range 3 { // the guard may be about to end, or another engine about to start it
		conn, err := dial(ctx, c.dir)
		if err != nil {
			if err := c.spawn(ctx); err != nil {
				return err
			}
			continue
		}
		c.conn, c.in = conn, bufio.NewReader(conn)
		if _, err := c.exchange(ctx, order{Op: "list"}); err == nil {
			return nil
		}
		c.drop()
	}
	return fmt.Errorf("connect to the guard in %s: %w", c.dir, api.ErrUnavailable)
}

// dial goes through a descriptor of the directory: a socket's path may have no
// more than 108 bytes.
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

// spawn starts a guard and returns when it listens, or when another one does.
func (c *Client) spawn(ctx context.Context) error {
	cg, err := cgroup.Mounted()
	if err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	group, err := cg.Create(cgroupPath, cgroup.Limits{})
	if err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	defer ours.Close()
	cmd := &exec.Cmd{
		Path: c.exe, Args: []string{name, c.dir}, Dir: "/", Env: []string{"GOMAXPROCS=1", "GOGC=50"},
		ExtraFiles:  []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = group.Start(cmd, nil)
	theirs.Close()
	if err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	go cmd.Wait() // to reap it, should it end before us
	defer context.AfterFunc(ctx, func() { _ = ours.SetReadDeadline(time.Unix(1, 0)) })()
	msg, err := io.ReadAll(ours)
	if err != nil {
		return fmt.Errorf("start guard: %w", errors.Join(err, context.Cause(ctx)))
	}
	if string(msg) != "ok" {
		return fmt.Errorf("start guard: %s", msg)
	}
	return nil
}

// boottime is CLOCK_BOOTTIME in nanoseconds.
func boottime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // every Linux has it
	}
	return ts.Nano()
}
