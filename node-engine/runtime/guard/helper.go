package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"golang.org/x/sys/unix"
)

// name is how a guard is called, and how ps shows it.
const name = "treeline-guard"

const (
	fileName   = "guard.json"
	lockName   = "guard.lock"
	killWithin = 2 * time.Second // one attempt to kill; then it is tried again
	retryAfter = 100 * time.Millisecond

	// startWithin is how long after its deadline, and after the order that set it, a
	// start that was under way may yet bring a process: the engine gives up on one
	// after a minute, but not everybody whom it asked.
	startWithin = 2 * time.Minute
)

// Main turns this process into a guard and never returns, if it was started as
// one. Every program that uses the package calls it first of all in main.
func Main() {
	if len(os.Args) != 2 || os.Args[0] != name {
		return
	}
	ready := os.NewFile(3, "ready")
	if err := run(os.Args[1], ready); err != nil {
		fmt.Fprint(ready, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// helper is the guard's process. One goroutine owns it; others send it requests.
type helper struct {
	root   *os.Root
	cg     cgroup.FS
	boot   string
	held   map[string]Deadline
	looked int64 // when what was due was last killed, of CLOCK_BOOTTIME
	orders chan request
	gone   chan struct{} // a client has left
	alarm  *alarm
}

type request struct {
	order
	reply chan answer
}

// kept is the guard's file. Deadlines of an earlier life of the machine are
// about processes that are gone.
type kept struct {
	Boot string
	Held map[string]Deadline
}

func run(dir string, ready *os.File) error {
	unix.CloseOnExec(3)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	lock, err := root.OpenFile(lockName, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		fmt.Fprint(ready, "ok") // another one is there; the client connects to it
		return nil
	} else if err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	// The last to be killed when memory is short.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0)
	h := &helper{root: root, held: make(map[string]Deadline), orders: make(chan request), gone: make(chan struct{}, 1)}
	if h.cg, err = cgroup.Mounted(); err != nil {
		return err
	}
	if err := h.load(); err != nil {
		return err
	}
	if h.alarm, err = newAlarm(); err != nil {
		return err
	}
	l, err := listen(root, dir)
	if err != nil {
		return err
	}
	conns := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(conns)
				return
			}
			conns <- c
		}
	}()
	fmt.Fprint(ready, "ok")
	ready.Close()
	err = h.serve(conns)
	return errors.Join(err, root.Remove(socketName))
}

func listen(root *os.Root, dir string) (net.Listener, error) {
	if err := root.Remove(socketName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketIn(d), Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the path leads through a descriptor that is closed by then
	return l, root.Chmod(socketName, 0o600)
}

// serve owns the deadlines until nothing is held and nobody is connected. The
// first client has to come: whoever started us is about to connect.
func (h *helper) serve(conns <-chan net.Conn) error {
	clients := 0
	lonely := time.NewTimer(callTimeout)
	for {
		if err := h.alarm.set(h.next()); err != nil {
			return err
		}
		select {
		case c, ok := <-conns:
			if !ok {
				return errors.New("the socket is closed")
			}
			clients++
			go h.talk(c)
		case <-h.gone:
			clients--
			lonely.Reset(retryAfter)
		case r := <-h.orders:
			r.reply <- h.obey(r.order)
		case <-h.alarm.rings:
			h.killDue()
		case <-lonely.C:
		}
		if clients == 0 && len(h.held) == 0 {
			lonely.Reset(callTimeout)
			select {
			case c, ok := <-conns: // a moment for an engine that starts anew
				if ok {
					clients++
					go h.talk(c)
				}
			case <-lonely.C:
				return nil
			}
		}
	}
}

func (h *helper) talk(c net.Conn) {
	defer func() { h.gone <- struct{}{} }()
	defer c.Close()
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	for {
		var r request
		if in.Decode(&r.order) != nil {
			return
		}
		r.reply = make(chan answer)
		h.orders <- r
		if out.Encode(<-r.reply) != nil {
			return
		}
	}
}

func (h *helper) obey(o order) answer {
	switch o.Op {
	case "set":
		if o.Target.Cgroup == "" || o.Target.Cgroup == "/" || !strings.HasPrefix(o.Target.Cgroup, "/") {
			return answer{Error: fmt.Sprintf("cgroup %q cannot be guarded: %v", o.Target.Cgroup, api.ErrInvalid)}
		}
		o.Until = max(o.Until, boottime()) // a start may begin with this order
		h.held[o.Key] = o.Deadline
	case "lift":
		if _, ok := h.held[o.Key]; !ok {
			return answer{}
		}
		delete(h.held, o.Key)
	case "list":
		return answer{Held: maps.Clone(h.held)} // it is encoded by another goroutine
	default:
		return answer{Error: fmt.Sprintf("unknown order %q", o.Op)}
	}
	if err := h.save(); err != nil {
		return answer{Error: err.Error()}
	}
	return answer{}
}

// next is when to kill or to look again, 0 if nothing is held.
func (h *helper) next() (at int64) {
	for _, d := range h.held {
		look := max(d.Until, 1)
		if d.Until <= h.looked {
			look = h.looked + int64(retryAfter)
		}
		if at == 0 || look < at {
			at = look
		}
	}
	return at
}

// killDue kills what is due. What resists stays held and is tried again, and so
// does what has no process as long as a start may be under way: whoever ordered
// it may be dead when it has one.
func (h *helper) killDue() {
	h.looked = boottime()
	var due []string
	for k, d := range h.held {
		if d.Until <= h.looked {
			due = append(due, k)
		}
	}
	slices.Sort(due)
	held := len(h.held)
	for _, k := range due {
		d := h.held[k]
		killed, err := h.kill(h.cg.Group(d.Target.Cgroup))
		if err == nil && (killed || h.looked-d.Until > int64(startWithin)) {
			delete(h.held, k)
		}
	}
	if len(h.held) < held {
		_ = h.save() // a file that still names the dead does no harm: killing them again is nothing
	}
}

// kill kills every process of a group and reports whether there was any.
func (h *helper) kill(g cgroup.Group) (any bool, err error) {
	pids, err := g.Procs()
	if err != nil || len(pids) == 0 {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), killWithin)
	defer cancel()
	return true, g.Kill(ctx)
}

func (h *helper) load() error {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	h.boot = strings.TrimSpace(string(b))
	b, err = h.root.ReadFile(fileName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var k kept
	if err := json.Unmarshal(b, &k); err != nil {
		return fmt.Errorf("%s is damaged, remove it: %w", fileName, err)
	}
	if k.Boot == h.boot && k.Held != nil {
		h.held = k.Held
	}
	return nil
}

func (h *helper) save() error {
	b, err := json.Marshal(kept{Boot: h.boot, Held: h.held})
	if err != nil {
		return err
	}
	if err := h.root.WriteFile(fileName+".new", b, 0o600); err != nil {
		return fmt.Errorf("keep deadlines: %w", err)
	}
	// No fsync: the file is for a guard that was killed, not for a machine that
	// fell, whose processes are gone as well.
	return h.root.Rename(fileName+".new", fileName)
}

// alarm rings at moments of CLOCK_BOOTTIME, at once if they passed in a sleep.
type alarm struct {
	f     *os.File
	rings chan struct{}
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make alarm: %w", err)
	}
	a := &alarm{f: os.NewFile(uintptr(fd), "alarm"), rings: make(chan struct{})}
	go func() {
		for b := make([]byte, 8); ; {
			if _, err := a.f.Read(b); err != nil && !errors.Is(err, syscall.EINTR) {
				return
			}
			a.rings <- struct{}{}
		}
	}()
	return a, nil
}

// set has the alarm ring at a moment, never for 0.
func (a *alarm) set(at int64) error {
	conn, err := a.f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := conn.Control(func(fd uintptr) {
		err = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(at)}, nil)
	})
	return errors.Join(cerr, err)
}
