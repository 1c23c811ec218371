package netbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

// childName is the name of this program when it runs a role in a namespace.
const childName = "treeline-netbench"

// role runs a child with its order. It calls ready once it serves, and returns the result for
// its parent, or nil. It ends when ctx does.
type role func(ctx context.Context, order []byte, ready func()) (any, error)

// stdin has the parent's messages after the order. Few roles use it.
var stdin io.Reader

// roles are registered by the files that define them.
var roles = map[string]role{}

// as converts a function with a typed order to a role.
func as[T any](fn func(ctx context.Context, order T, ready func()) (any, error)) role {
	return func(ctx context.Context, text []byte, ready func()) (any, error) {
		var order T
		if err := json.Unmarshal(text, &order); err != nil {
			return nil, err
		}
		return fn(ctx, order, ready)
	}
}

// Main must be called first by a program that opens beds. If the process was started as a child,
// Main runs the child and does not return.
func Main() {
	if len(os.Args) != 3 || os.Args[0] != childName {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	in := bufio.NewReader(os.Stdin)
	order, err := in.ReadBytes('\n')
	if err == nil {
		more, w := io.Pipe()
		stdin = more
		go func() { // until the parent ends, also if it is killed
			_, _ = io.Copy(w, in)
			_ = w.Close()
			cancel()
		}()
		var result any
		result, err = roles[os.Args[1]](ctx, order, func() { fmt.Println("ready") })
		if err == nil && result != nil {
			err = json.NewEncoder(os.Stdout).Encode(result)
		}
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "%s in %s: %v\n", os.Args[1], os.Args[2], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a process of this program in a namespace.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	err   lockedBuffer
	done  chan struct{} // closed when the process has ended
	end   error
}

// start starts a child in a namespace. The name is used in messages.
func (n *Namespace) start(name string, order any) (*child, error) {
	if roles[name] == nil {
		return nil, fmt.Errorf("unknown role %q", name)
	}
	text, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{name: name + " in " + n.Name, done: make(chan struct{})}
	c.cmd = &exec.Cmd{Path: self, Args: []string{childName, name, n.Name}}
	c.cmd.Stderr = &c.err
	stdout, w, err := os.Pipe() // own pipe, so that Wait does not close it during a read
	if err != nil {
		return nil, err
	}
	defer w.Close()
	c.cmd.Stdout, c.out = w, bufio.NewReader(stdout)
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := n.Start(c.cmd); err != nil {
		return nil, err
	}
	go func() {
		c.end = c.cmd.Wait()
		close(c.done)
	}()
	if _, err := fmt.Fprintf(c.stdin, "%s\n", text); err != nil {
		return nil, errors.Join(fmt.Errorf("order %s: %w", c.name, err), c.stop())
	}
	return c, nil
}

// ready waits until a child is ready.
func (c *child) ready() error {
	line, err := c.out.ReadString('\n')
	if line != "ready\n" {
		return fmt.Errorf("%s did not become ready: %w", c.name, c.why(err))
	}
	return nil
}

// result waits for the result of a child.
func (c *child) result(ctx context.Context, v any) error {
	early := context.AfterFunc(ctx, func() { _ = c.stdin.Close() })
	defer early()
	err := json.NewDecoder(c.out).Decode(v)
	if ended := c.stop(); ended != nil {
		return ended
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// why returns the last output of a child that has ended, or else err.
func (c *child) why(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) {
		<-c.done
		return fmt.Errorf("%w: %s", c.end, strings.TrimSpace(c.err.String()))
	}
	return err
}

// patience bounds the time that a child takes to end.
const patience = 10 * time.Second

// stop ends a child and waits for its end. If it does not end, its goroutine stacks are printed.
func (c *child) stop() error {
	_ = c.stdin.Close()
	late := time.AfterFunc(patience, func() { _ = c.cmd.Process.Signal(syscall.SIGQUIT) })
	<-c.done
	late.Stop()
	if c.end != nil {
		return fmt.Errorf("%s: %w", c.name, c.why(io.EOF))
	}
	return nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// run starts a child, sends the order and returns the result.
func (n *Namespace) run(ctx context.Context, name string, order, result any) error {
	c, err := n.start(name, order)
	if err != nil {
		return err
	}
	return c.result(ctx, result)
}

// lockedBuffer is a buffer that can be read while a process writes to it.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() > 1<<20 {
		return len(p), nil // keep the beginning
	}
	return l.b.Write(p)
}

// String implements fmt.Stringer.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
