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

// childName is how this program is called where it plays a role in a namespace.
const childName = "treeline-netbench"

// role is what a child does with its order. It says ready once when others may
// count on it, and returns what its parent is to read, or nothing. It ends when
// ctx does.
type role func(ctx context.Context, order []byte, ready func()) (any, error)

// stdin is what a child's parent says after the order; most have nothing to hear.
var stdin io.Reader

// roles are filled by the files that need them.
var roles = map[string]role{}

// as makes a role of a function that knows its order's type.
func as[T any](fn func(ctx context.Context, order T, ready func()) (any, error)) role {
	return func(ctx context.Context, text []byte, ready func()) (any, error) {
		var order T
		if err := json.Unmarshal(text, &order); err != nil {
			return nil, err
		}
		return fn(ctx, order, ready)
	}
}

// Main is called first of all by a program that opens beds: it turns this process
// into a child if it was started as one, and never returns then.
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
		go func() { // until the parent ends, however it ends
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

// child is this program in a namespace.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	err   lockedBuffer
	done  chan struct{} // closed when the process has ended
	end   error
}

// start starts a child in a namespace. Its own name is for messages.
func (n *Namespace) start(name string, order any) (*child, error) {
	if roles[name] == nil {
		return nil, fmt.Errorf("there is no role %q", name)
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
	stdout, w, err := os.Pipe() // ours, so that Wait closes nothing that is still read
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

// ready waits until a child says so.
func (c *child) ready() error {
	line, err := c.out.ReadString('\n')
	if line != "ready\n" {
		return fmt.Errorf("%s does not get ready: %w", c.name, c.why(err))
	}
	return nil
}

// result waits for what a child has to say at its end.
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

// why is what a child said last, where it has ended, and err else.
func (c *child) why(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) {
		<-c.done
		return fmt.Errorf("%w: %s", c.end, strings.TrimSpace(c.err.String()))
	}
	return err
}

// patience is how long a child may take to end.
const patience = 10 * time.Second

// stop ends a child and waits for its end. One that does not end has to say what
// all its goroutines wait for.
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

// run is a child's whole life: it gets an order and answers.
func (n *Namespace) run(ctx context.Context, name string, order, result any) error {
	c, err := n.start(name, order)
	if err != nil {
		return err
	}
	return c.result(ctx, result)
}

// lockedBuffer is read while a process still writes to it.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

// Write is io.Writer's.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() > 1<<20 {
		return len(p), nil // the first words say most
	}
	return l.b.Write(p)
}

// String is fmt.Stringer's.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
