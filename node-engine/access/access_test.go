package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/forward"
	"github.com/treeline-edge/treeline/internal/frames"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fake is a runtime whose processes are functions.
type fake struct {
	runtime.Runtime
	run    func(ctx context.Context, p runtime.Process, resized chan [2]uint16) (int, error)
	log    string
	status runtime.Status
}

type process struct {
	done    chan struct{}
	code    int
	err     error
	resized chan [2]uint16
}

func (f *fake) Exec(ctx context.Context, _ wire.Key, p runtime.Process) (runtime.Running, error) {
	if p.Args[0] == "missing" {
		return nil, fmt.Errorf("start missing: no such program: %w", api.ErrInvalid)
	}
	r := &process{done: make(chan struct{}), resized: make(chan [2]uint16, 8)}
	go func() {
		defer close(r.done)
		if r.code, r.err = f.run(ctx, p, r.resized); ctx.Err() != nil {
			r.err = context.Cause(ctx)
		}
	}()
	return r, nil
}

func (p *process) Wait(context.Context) (int, error) {
	<-p.done
	return p.code, p.err
}

func (p *process) Resize(w, h uint16) error {
	p.resized <- [2]uint16{w, h}
	return nil
}

func (f *fake) Logs(context.Context, wire.Key, int, bool) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(f.log)), nil
}

func (f *fake) List(context.Context) ([]runtime.Status, error) {
	return []runtime.Status{f.status}, nil
}

func (f *fake) Namespace(context.Context, wire.Key) (string, runtime.Workload, error) {
	return "namespace", runtime.Workload{}, nil
}

// user is the user's end of a stream.
type user struct {
	io.Reader
	io.Writer
	close func()
}

func (u user) Close() error {
	u.close()
	return nil
}

// begin serves a request, and returns the user's end and the result.
func begin(t *testing.T, a *Access, r wire.StreamRequest) (user, chan error) {
	t.Helper()
	serve, err := a.Open(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	downRead, downWrite := io.Pipe()
	upRead, upWrite := io.Pipe()
	conn := streams.NewConn(downWrite, upRead)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		err := serve(ctx, conn)
		_ = conn.CloseWrite()
		done <- err
	}()
	u := user{downRead, upWrite, func() { cancel(errLeft); _, _ = downRead.Close(), upWrite.Close() }} // as DialDuplex does
	t.Cleanup(u.close)
	return u, done
}

var exec1 = wire.StreamRequest{Kind: "exec", Instance: "acme/a.b.c.d#0", Exec: &api.Exec{Args: []string{"run"}, Stdin: true, TTY: true, Width: 80, Height: 24}}

func TestExecPassesEverything(t *testing.T) {
	a := New(Options{Runtime: &fake{run: func(_ context.Context, p runtime.Process, resized chan [2]uint16) (int, error) {
		if !p.TTY || p.Width != 80 || p.Height != 24 || p.Args[0] != "run" {
			t.Errorf("process %+v, want that of the request", p)
		}
		size := <-resized
		text, _ := io.ReadAll(p.Stdin) // until the end of the user's input, while the stream is open
		fmt.Fprintf(p.Stdout, "%dx%d %s", size[0], size[1], text)
		fmt.Fprint(p.Stderr, "warning")
		return 7, nil
	}}})
	u, done := begin(t, a, exec1)
	w := frames.NewWriter(u)
	for _, err := range []error{w.Resize(120, 40), w.Write(99, []byte("of a later release")), w.Write(frames.Stdin, []byte("input")), w.Write(frames.EOF, nil)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r := frames.NewReader(u)
	for _, want := range []struct {
		kind frames.Kind
		text string
	}{{frames.Stdout, "120x40 input"}, {frames.Stderr, "warning"}, {frames.Exit, "\x00\x00\x00\x07"}} {
		if k, p, err := r.Next(); k != want.kind || string(p) != want.text || err != nil {
			t.Errorf("frame %d %q, %v; want %d %q", k, p, err, want.kind, want.text)
		}
	}
	if _, _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the exit code: %v, want the end", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestTheProcessEndsWithTheStream: also while it writes to a user who does not read, and while input
// waits that it does not read.
func TestTheProcessEndsWithTheStream(t *testing.T) {
	ended := make(chan error, 1)
	a := New(Options{Runtime: &fake{run: func(ctx context.Context, p runtime.Process, _ chan [2]uint16) (int, error) {
		for {
			if _, err := p.Stdout.Write(make([]byte, 1000)); err != nil {
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return 0, nil
			}
		}
	}}})
	u, done := begin(t, a, exec1)
	go frames.NewWriter(u).Write(frames.Stdin, make([]byte, 1<<20))
	if _, _, err := frames.NewReader(u).Next(); err != nil {
		t.Fatal(err)
	}
	u.Close()
	if err := <-ended; !errors.Is(err, errLeft) {
		t.Errorf("the process was killed because of %v, want %v", err, errLeft)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestErrorsReachTheUser(t *testing.T) {
	a := New(Options{Runtime: &fake{run: func(context.Context, runtime.Process, chan [2]uint16) (int, error) {
		return 0, fmt.Errorf("the runtime does not answer: %w", api.ErrUnavailable)
	}}})
	missing := exec1
	missing.Exec = &api.Exec{Args: []string{"missing"}}
	for _, c := range []struct {
		r    wire.StreamRequest
		want error
	}{{missing, api.ErrInvalid}, {exec1, api.ErrUnavailable}} {
		u, _ := begin(t, a, c.r)
		if k, p, err := frames.NewReader(u).Next(); k != frames.Error || err != nil || !errors.Is(frames.Problem(p), c.want) {
			t.Errorf("frame %d %q, %v; want an error of kind %v", k, p, err, c.want)
		}
	}
	for _, bad := range []wire.StreamRequest{
		{Kind: "exec"},
		{Kind: "exec", Exec: &api.Exec{}},
		{Kind: "exec", Exec: &api.Exec{Args: make([]string, api.MaxExecArgs+1)}},
		{Kind: "exec", Exec: &api.Exec{Args: []string{strings.Repeat("x", api.MaxExecBytes+1)}}},
		{Kind: "exec", Exec: &api.Exec{Args: []string{"a\x00b"}}},
		{Kind: "teleport"},
	} {
		if _, err := a.Open(t.Context(), bad); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%+.100v: got %v, want ErrInvalid", bad, err)
		}
	}
}

func TestAttachEndsWithTheExitCode(t *testing.T) {
	r := wire.StreamRequest{Kind: "attach", Instance: "acme/a.b.c.d#0", Epoch: 3}
	a := New(Options{Runtime: &fake{log: "last words", status: runtime.Status{
		Key: wire.Key{Instance: r.Instance, Epoch: r.Epoch}, Phase: wire.WorkloadExited, ExitCode: 9,
	}}})
	u, done := begin(t, a, r)
	in := frames.NewReader(u)
	if k, p, err := in.Next(); k != frames.Stdout || string(p) != "last words" || err != nil {
		t.Errorf("frame %d %q, %v", k, p, err)
	}
	k, p, err := in.Next()
	if code, _ := frames.Code(p); k != frames.Exit || code != 9 || err != nil {
		t.Errorf("frame %d %q, %v; want exit code 9", k, p, err)
	}
	u.Close()
	<-done
}

// TestForwardedConnectionsLeaveRoomForOthers: one user opens any number of connections in any number of
// sessions; another tenant can still open one.
func TestForwardedConnectionsLeaveRoomForOthers(t *testing.T) {
	a := New(Options{Runtime: &fake{}})
	var far []net.Conn
	conns := make(chan net.Conn, 1000)
	a.dial = func(context.Context, string, forward.Target) (net.Conn, error) {
		x, y := net.Pipe()
		conns <- y
		return x, nil
	}
	defer func() {
		close(conns)
		for c := range conns {
			far = append(far, c)
		}
		for _, c := range far {
			_ = c.Close()
		}
	}()
	session := func(who string) *forward.Session {
		u, _ := begin(t, a, wire.StreamRequest{Kind: "portforward", Instance: "acme/a.b.c.d#0", For: streams.For(api.Tenant(who), who)})
		s, err := forward.Client(u)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	open := 0
	for range 3 {
		s := session("loud")
		for range 40 {
			_, err := s.Open(forward.Target{Protocol: "tcp", Port: 80})
			if err == nil {
				open++
			} else if !strings.Contains(err.Error(), "forward a connection") {
				t.Errorf("refused with %v, want the reason", err)
			}
		}
	}
	if open != 64 {
		t.Errorf("one person has %d connections, want 64", open)
	}
	if _, err := session("quiet").Open(forward.Target{Protocol: "tcp", Port: 80}); err != nil {
		t.Errorf("a connection of another tenant: %v", err)
	}
}

// TestAForwardStaysInTheNamespace: ports of the workload are reached, those of the machine are not, and
// the machine's own namespace is refused.
func TestAForwardStaysInTheNamespace(t *testing.T) {
	programtest.NeedRoot(t)
	programtest.Need(t, "ip")
	// Not by /proc/self/ns/net: that is the namespace of the main thread, which may be the one below.
	machine, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	path, listener := make(chan string), make(chan net.Listener)
	end := make(chan struct{})
	go func() {
		goruntime.LockOSThread() // the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
		}
		path <- fmt.Sprintf("/proc/%d/task/%d/ns/net", unix.Getpid(), unix.Gettid())
		listener <- l
		<-end
	}()
	ns, inside := <-path, <-listener
	defer close(end)
	defer inside.Close()
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	at := func(l net.Listener) forward.Target {
		return forward.Target{Protocol: "tcp", Port: uint16(l.Addr().(*net.TCPAddr).Port)}
	}
	c, err := dial(t.Context(), ns, at(inside))
	if err != nil {
		t.Fatalf("a port of the workload: %v", err)
	}
	_ = c.Close()
	if c, err := dial(t.Context(), ns, at(outside)); err == nil || !strings.Contains(err.Error(), "no process of the workload listens") {
		if c != nil {
			_ = c.Close()
		}
		t.Errorf("a port of the machine: got %v, want it refused", err)
	}
	if _, err := dial(t.Context(), fmt.Sprintf("/proc/self/fd/%d", machine.Fd()), at(outside)); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("the machine's namespace: got %v, want ErrNotFound", err)
	}
	// The threads that dialled are back in the machine's namespace.
	for range 50 {
		done := make(chan error)
		go func() {
			c, err := net.DialTimeout("tcp", outside.Addr().String(), time.Minute)
			if err == nil {
				_ = c.Close()
			}
			done <- err
		}()
		if err := <-done; err != nil {
			t.Fatalf("after dials in the namespace: %v", err)
		}
	}
}

// keyboard is the input of a workload that reads when it is told to.
type keyboard struct {
	calls chan string
	reads bool
	done  chan struct{}
	once  sync.Once
}

func (k *keyboard) Write(p []byte) (int, error) {
	k.calls <- "write " + string(p)
	if !k.reads {
		<-k.done
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

func (k *keyboard) Close() error {
	k.once.Do(func() { close(k.done) })
	return nil
}

func (k *keyboard) End(context.Context) error {
	k.calls <- "end"
	return nil
}

func (k *keyboard) Resize(w, h uint16) error {
	k.calls <- fmt.Sprintf("size %dx%d", w, h)
	return nil
}

// attachable is a runtime whose workloads have an input, and write nothing.
type attachable struct {
	fake
	keys *keyboard
}

func (a *attachable) Attach(_ context.Context, _ wire.Key, terminal bool) (runtime.Input, error) {
	if terminal {
		return a.keys, nil
	}
	return nil, fmt.Errorf("its service has no input: %w", api.ErrConflict)
}

func (a *attachable) Logs(ctx context.Context, _ wire.Key, _ int, _ bool) (io.ReadCloser, error) {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { _ = w.Close() })
	return r, nil
}

// TestAttachPassesInput: the end of the user's stream is not the end of the input, and a workload that
// does not read does not keep the stream.
func TestAttachPassesInput(t *testing.T) {
	r := wire.StreamRequest{Kind: "attach", Instance: "acme/a.b.c.d#0", Exec: &api.Exec{Stdin: true, TTY: true, Width: 80, Height: 24}}
	for _, reads := range []bool{true, false} {
		keys := &keyboard{calls: make(chan string, 8), reads: reads, done: make(chan struct{})}
		u, done := begin(t, New(Options{Runtime: &attachable{keys: keys}}), r)
		to := frames.NewWriter(u)
		want := []string{"size 80x24", "write a"}
		_ = to.Write(frames.Stdin, []byte("a"))
		if reads {
			want = append(want, "size 120x40", "end")
			_ = to.Resize(120, 40)
			_ = to.Write(frames.EOF, nil)
		}
		for _, w := range want {
			if got := <-keys.calls; got != w {
				t.Errorf("the workload got %q, want %q", got, w)
			}
		}
		_ = u.Close()
		if err := <-done; err != nil {
			t.Errorf("attach after the user left: %v", err)
		}
		if len(keys.calls) > 0 {
			t.Errorf("after the user left the workload got %q, want nothing", <-keys.calls)
		}
	}
	for _, rt := range []runtime.Runtime{&fake{}, &attachable{}} {
		r.Exec = &api.Exec{Stdin: true}
		u, _ := begin(t, New(Options{Runtime: rt}), r)
		kind, payload, err := frames.NewReader(u).Next()
		if kind != frames.Error || err != nil || !strings.Contains(frames.Problem(payload).Error(), "no input") {
			t.Errorf("input for a workload without: got %d %q, %v; want a refusal", kind, payload, err)
		}
	}
}
