package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/cli/remote"
	"github.com/treeline-edge/treeline/internal/frames"
)

// Console is the user's terminal.
type Console interface {
	// Raw passes every key to the program until restore is called.
	Raw() (restore func(), err error)
	// Size returns the terminal's columns and rows; zeros if they are unknown.
	Size() (width, height uint16)
	// Changes signals after each change of the size until ctx ends.
	Changes(ctx context.Context) <-chan struct{}
}

// exited is the error of a process that ended with an exit code other than 0, which becomes the
// command's.
type exited struct{ code int }

func (e exited) Error() string { return fmt.Sprintf("the process ended with exit code %d", e.code) }

// ended returns the error for an exit code.
func ended(code int, err error) error {
	if err == nil && code != 0 {
		return exited{code}
	}
	return err
}

func (c *cli) execCmd() *cobra.Command {
	var stdin, tty bool
	cmd := &cobra.Command{
		Use: "exec INSTANCE|SERVICE [--] PROGRAM [ARG...]", Short: "Run a program in an instance", Args: cobra.MinimumNArgs(2),
		Long: `Run a program in the workload of an instance, as the workload's user and within its
limits. Of a service, the first instance that runs is used. The exit code is that of
the program. The program ends when the command ends.`,
		Example: `  treeline exec shop/web#0 env
  treeline exec -it shop/web -- sh`,
		ValidArgsFunction: c.complete("instances", "services"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			program := args[1:]
			if program[0] == "--" {
				program = program[1:]
			}
			e := api.Exec{Args: program, Stdin: stdin, TTY: tty}
			if err := e.Validate(); err != nil {
				return err
			}
			if tty && c.Console == nil {
				return usage("-t: stdin is not a terminal")
			}
			id, err := c.running(ctx, a, args[0])
			if err != nil {
				return err
			}
			return c.exec(ctx, a, id, e)
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // flags after the instance are the program's
	f.BoolVarP(&stdin, "stdin", "i", false, "pass stdin to the program")
	f.BoolVarP(&tty, "tty", "t", false, "run it in a terminal of this terminal's size")
	return cmd
}

// exec runs a process with the command's streams.
func (c *cli) exec(ctx context.Context, a *client.Client, id api.InstanceID, e api.Exec) error {
	if e.TTY {
		e.Width, e.Height = c.Console.Size()
	}
	conn, err := remote.Dial(ctx, a, id, "exec", client.ExecQuery(e))
	if err != nil {
		return err
	}
	defer conn.Close()
	return c.converse(ctx, conn, e, c.In)
}

// converse connects a process with the command's streams until it ends. in is its input.
func (c *cli) converse(ctx context.Context, conn *remote.Conn, e api.Exec, in io.Reader) error {
	to := frames.NewWriter(conn)
	if e.TTY {
		restore, err := c.Console.Raw()
		if err != nil {
			return fmt.Errorf("prepare the terminal: %w", err)
		}
		defer restore()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			for range c.Console.Changes(ctx) {
				_ = to.Resize(c.Console.Size())
			}
		}()
	}
	if e.Stdin {
		go remote.Input(to, in)
	}
	return ended(remote.Output(conn, c.Out, c.Err))
}

func (c *cli) attachCmd() *cobra.Command {
	var e api.Exec
	cmd := &cobra.Command{
		Use: "attach INSTANCE|SERVICE", Short: "Connect to the workload of an instance until it ends", Args: cobra.ExactArgs(1),
		Long: `Show what the workload of an instance writes from now on, until it ends. The exit code
is that of the workload.

With -i, stdin goes to the workload, whose service needs stdin: true; the end of stdin is
the end of the workload's input for good. With -it, the workload's terminal, which its
service has with tty: true, gets every key. To leave it and keep it running, type Ctrl-P
and then Ctrl-Q; without -t, Ctrl-C.`,
		ValidArgsFunction: c.complete("instances", "services"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			if e.TTY && c.Console == nil {
				return usage("-t: stdin is not a terminal")
			}
			id, err := c.running(ctx, a, args[0])
			if err != nil {
				return err
			}
			if e.TTY {
				e.Width, e.Height = c.Console.Size()
			}
			conn, err := remote.Dial(ctx, a, id, "attach", client.ExecQuery(e))
			if err != nil {
				return err
			}
			defer conn.Close()
			c.say("attached to %s", c.progress().Short(string(id)))
			in := &leaving{from: c.In, leave: func() { _ = conn.Close() }}
			if e.TTY {
				err = c.converse(ctx, conn, e, in)
			} else {
				err = c.converse(ctx, conn, e, c.In)
			}
			if ctx.Err() != nil || in.left.Load() {
				return nil // ended by the user
			}
			return err
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&e.Stdin, "stdin", "i", false, "pass stdin to the workload")
	f.BoolVarP(&e.TTY, "tty", "t", false, "use the workload's terminal in this terminal's size")
	return cmd
}

// The keys that leave a terminal: Ctrl-P and then Ctrl-Q.
const leaveFirst, leaveSecond = 0x10, 0x11

// leaving is the input of a terminal that the user can leave.
type leaving struct {
	from  io.Reader
	leave func()
	left  atomic.Bool
	held  bool // leaveFirst was read and not passed on
}

// Read implements io.Reader.
func (l *leaving) Read(p []byte) (int, error) {
	if len(p) < 2 {
		return 0, io.ErrShortBuffer
	}
	for {
		kept := 0
		if l.held {
			p[0], kept = leaveFirst, 1
		}
		n, err := l.from.Read(p[kept:])
		if n > 0 && l.held && p[1] == leaveSecond || bytes.Contains(p[kept:kept+n], []byte{leaveFirst, leaveSecond}) {
			l.left.Store(true)
			l.leave()
			return 0, io.EOF
		}
		n += kept
		l.held = err == nil && n > 0 && p[n-1] == leaveFirst
		if l.held {
			n--
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// running returns the instance that a reference identifies: the first of a service that runs. If none
// runs, it returns the first, about which the root says why.
func (c *cli) running(ctx context.Context, a *client.Client, reference string) (api.InstanceID, error) {
	found, err := c.findInstances(ctx, a, reference)
	if err != nil {
		return "", err
	}
	service := found[0].Service
	if slices.ContainsFunc(found, func(i api.Instance) bool { return i.Service != service }) {
		return "", usage("%s names instances of several services; name one", reference)
	}
	if i := slices.IndexFunc(found, func(i api.Instance) bool { return i.State == api.Running && !i.Leaving }); i >= 0 {
		return found[i].ID, nil
	}
	return found[0].ID, nil
}

// side is one side of a copy.
type side struct {
	instance string // reference; empty: this machine
	path     string
}

// sideOf parses INSTANCE:PATH or a path of this machine. A path that contains a colon is written with
// a slash before it (./a:b).
func sideOf(arg string) side {
	ref, path, ok := strings.Cut(arg, ":")
	if !ok || len(ref) < 2 || strings.HasPrefix(ref, ".") || strings.HasPrefix(ref, "/") {
		return side{path: arg} // one letter is a drive of Windows
	}
	return side{ref, path}
}

func (c *cli) cpCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cp SOURCE DESTINATION", Short: "Copy files to or from an instance", Args: cobra.ExactArgs(2),
		Long: `Copy a file or directory to or from the workload of an instance. One side is
INSTANCE:PATH. A destination that ends with a slash is the directory to copy into;
any other is the name of the copy. Symbolic links are not copied.

The workload's image must have the program tar, which runs as the workload's user.`,
		Example: `  treeline cp config.yaml shop/web#0:/tmp/
  treeline cp shop/web#0:/var/log/app ./logs`,
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			from, to := sideOf(args[0]), sideOf(args[1])
			if (from.instance == "") == (to.instance == "") || from.path == "" || to.path == "" {
				return usage("give one side as INSTANCE:PATH and the other as a path of this machine")
			}
			id, err := c.running(ctx, a, from.instance+to.instance)
			if err != nil {
				return err
			}
			if from.instance == "" {
				return c.copyTo(ctx, a, from.path, id, to.path)
			}
			return c.copyFrom(ctx, a, id, from.path, to.path)
		}),
	}
	return cmd
}

// tar runs tar in an instance.
func (c *cli) tar(ctx context.Context, a *client.Client, id api.InstanceID, in io.Reader, out io.Writer, args ...string) error {
	e := api.Exec{Args: append([]string{"tar"}, args...), Stdin: in != nil}
	conn, err := remote.Dial(ctx, a, id, "exec", client.ExecQuery(e))
	if err != nil {
		return err
	}
	defer conn.Close()
	if in != nil {
		go remote.Input(frames.NewWriter(conn), in)
	}
	code, err := remote.Output(conn, out, c.Err)
	switch {
	case errors.Is(err, api.ErrInvalid):
		return fmt.Errorf("cp needs the program tar in the image of %s: %w", id, err)
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("tar in %s ended with exit code %d", id, code)
	}
	return nil
}
