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
	"strings"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/helper"
	"golang.org/x/sys/unix"
)

// name is the name of the guard's process.
const name = "treeline-guard"

const (
	fileName    = "guard.json"
	lockName    = "guard.lock"
	killTimeout = 2 * time.Second // of one attempt to kill
	retryPause  = 100 * time.Millisecond

	// startTimeout is how long a pending start may still add a process, counted from the deadline or
	// from the order that set it, whichever is later. The engine's call times out after a minute, but
	// the runtime may carry it out later.
	startTimeout = 2 * time.Minute
)

// Main runs the guard and exits, if this process was started as one. Programs that use the
// package call it first in main.
func Main() { helper.Main(name, run) }

// server is the guard. One goroutine owns it; others send it requests.
type server struct {
	root     *os.Root
	cg       cgroup.FS
	boot     string
	held     map[string]deadline
	killedAt int64 // time of the last killDue on CLOCK_BOOTTIME
	requests chan request
	gone     chan struct{} // a client has disconnected
	alarm    *alarm
}

type request struct {
	order
	reply chan answer
}

// saved is the content of the guard's file. Deadlines of an earlier boot are ignored.
type saved struct {
	Boot string
	Held map[string]deadline
}

func run(dir string, ready func()) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	lock, err := root.OpenFile(lockName, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		ready() // another guard runs; the client connects to that
		return nil
	} else if err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	// When memory is short, the kernel kills the guard last.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0)
	s := &server{root: root, held: make(map[string]deadline), requests: make(chan request), gone: make(chan struct{}, 1)}
	if s.cg, err = cgroup.Mounted(); err != nil {
		return err
	}
	if err := s.load(); err != nil {
		return err
	}
	if s.alarm, err = newAlarm(); err != nil {
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
	ready()
	err = s.serve(conns)
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
	l.SetUnlinkOnClose(false) // the path contains a descriptor that is closed by then
	return l, root.Chmod(socketName, 0o600)
}

// serve handles requests and deadlines. It returns when there was neither a deadline nor a
// client for callTimeout; an engine that starts the guard, or restarts, connects within that.
func (s *server) serve(conns <-chan net.Conn) error {
	clients := 0
	for {
		if err := s.alarm.set(s.next()); err != nil {
			return err
		}
		var idle <-chan time.Time
		if clients == 0 && len(s.held) == 0 {
			idle = time.After(callTimeout)
		}
		select {
		case c, ok := <-conns:
			if !ok {
				return errors.New("the socket is closed")
			}
			clients++
			go s.serveClient(c)
		case <-s.gone:
			clients--
		case r := <-s.requests:
			r.reply <- s.handle(r.order)
		case <-s.alarm.fires:
			s.killDue()
		case <-idle:
			return nil
		}
	}
}

func (s *server) serveClient(c net.Conn) {
	defer func() { s.gone <- struct{}{} }()
	defer c.Close()
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	for {
		r := request{reply: make(chan answer)}
		if in.Decode(&r.order) != nil {
			return
		}
		s.requests <- r
		if out.Encode(<-r.reply) != nil {
			return
		}
	}
}

func (s *server) handle(o order) answer {
	switch o.Op {
	case "set":
		if path := o.Target.Cgroup; path == "/" || !strings.HasPrefix(path, "/") {
			return answer{Error: fmt.Sprintf("guard cgroup %q: want an absolute path other than /: %v", path, api.ErrInvalid)}
		}
		o.Until = max(o.Until, boottime()) // a start may begin after this order
		s.held[o.Key] = o.deadline
	case "lift":
		if _, ok := s.held[o.Key]; !ok {
			return answer{}
		}
		delete(s.held, o.Key)
	case "list":
		return answer{Held: maps.Clone(s.held)} // another goroutine encodes it
	default:
		return answer{Error: fmt.Sprintf("unknown order %q, want set, lift or list", o.Op)}
	}
	if err := s.save(); err != nil {
		return answer{Error: err.Error()}
	}
	return answer{}
}

// next returns when to kill next, or to try again; 0 if there is no deadline.
func (s *server) next() (at int64) {
	for _, d := range s.held {
		due := max(d.Until, 1)
		if d.Until <= s.killedAt {
			due = s.killedAt + int64(retryPause)
		}
		if at == 0 || due < at {
			at = due
		}
	}
	return at
}

// killDue kills the groups that are due. A deadline is kept if the kill fails, and also if the
// group has no process while a start may be pending: the engine that ordered the start may
// not run when the process appears.
func (s *server) killDue() {
	s.killedAt = boottime()
	before := len(s.held)
	for k, d := range s.held {
		if d.Until > s.killedAt {
			continue
		}
		killed, err := kill(s.cg.Group(d.Target.Cgroup))
		if err == nil && (killed || s.killedAt-d.Until > int64(startTimeout)) {
			delete(s.held, k)
		}
	}
	if len(s.held) < before {
		_ = s.save() // with the old file, a new guard kills the same groups again, which is harmless
	}
}

// kill kills every process of a group and reports whether there was any.
func kill(g cgroup.Group) (killed bool, err error) {
	pids, err := g.Procs()
	if err != nil || len(pids) == 0 {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	return true, g.Kill(ctx)
}

func (s *server) load() (err error) {
	if s.boot, err = helper.BootID(); err != nil {
		return err
	}
	var f saved
	if err := helper.ReadJSON(s.root, fileName, &f); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("load deadlines (remove the file if it is damaged): %w", err)
	}
	if f.Boot == s.boot && f.Held != nil {
		s.held = f.Held
	}
	return nil
}

func (s *server) save() error {
	if err := helper.WriteJSON(s.root, fileName, saved{Boot: s.boot, Held: s.held}); err != nil {
		return fmt.Errorf("save deadlines: %w", err)
	}
	return nil
}

// alarm fires at times of CLOCK_BOOTTIME, and at once after a sleep during which they passed.
type alarm struct {
	f     *os.File
	fires chan struct{}
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a timer: %w", err)
	}
	a := &alarm{f: os.NewFile(uintptr(fd), "alarm"), fires: make(chan struct{})}
	go func() {
		for b := make([]byte, 8); ; {
			if _, err := a.f.Read(b); err != nil && !errors.Is(err, syscall.EINTR) {
				return
			}
			a.fires <- struct{}{}
		}
	}()
	return a, nil
}

// set sets when the alarm fires, a time of CLOCK_BOOTTIME; 0 disables it.
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
