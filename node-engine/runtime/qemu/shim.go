package qemu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/qemu/guest"
	"github.com/treeline-edge/treeline/node-engine/runtime/shim"
	"golang.org/x/sys/unix"
)

const (
	shimName     = "treeline-vm-shim"
	machineFile  = "machine.json"
	bootFile     = "boot" // the initial file system with the guest's parameters
	readyTimeout = 30 * time.Second
	maxError     = 2 << 10 // bytes of QEMU's messages in an error
)

// ShimMain runs a shim and exits, if this process was started as one. Programs that use the
// runtime call it first in main.
func ShimMain() { shim.Main(shimName, start) }

// start starts the machine of a workload and returns when QEMU has loaded it.
func start(p shim.Plan, dir string, group cgroup.Group) (*exec.Cmd, shim.ExitCodeOf, error) {
	text, err := os.ReadFile(filepath.Join(dir, machineFile))
	if err != nil {
		return nil, nil, err
	}
	var m machine
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, nil, err
	}
	v := &vm{machine: m, dir: dir}
	defer v.close()
	if err := inNamespace(m.NetNS, func() (err error) {
		v.tap, v.net, err = connect()
		return err
	}); err != nil {
		return nil, nil, fmt.Errorf("connect the guest to the network: %w", err)
	}
	if err := v.prepare(&p); err != nil {
		return nil, nil, err
	}
	cmd, err := v.launch(p, group)
	if err != nil {
		return nil, nil, err
	}
	return cmd, v.exitCode, nil
}

// vm is a machine that is started.
type vm struct {
	machine
	dir     string
	tap     *os.File     // nil: no network
	net     *interfaceOf // nil: no network
	theirs  []*os.File   // QEMU's descriptors
	monitor *monitor
	stderr  tail
}

func (v *vm) close() {
	for _, f := range append(v.theirs, v.tap) {
		_ = f.Close()
	}
}

// prepare sets QEMU's arguments and opens what it reads.
func (v *vm) prepare(p *shim.Plan) error {
	cmdline, err := v.cmdline(v.net)
	if err != nil {
		return err
	}
	initrd := ""
	switch {
	case !v.Unikernel:
		initrd = filepath.Join(v.dir, bootFile)
		err = v.writeBoot(initrd)
	case v.Initrd:
		initrd = filepath.Join(v.dir, initrdFile)
	}
	if err != nil {
		return err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	v.monitor = newMonitor(ours)
	v.theirs = append(v.theirs, theirs)
	for _, path := range []string{filepath.Join(v.dir, kernelFile), initrd} {
		if path == "" {
			path = os.DevNull // keeps the numbers of the descriptors
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		v.theirs = append(v.theirs, f)
	}
	p.Args = v.arguments(cmdline, initrd != "", v.net)
	return nil
}

// writeBoot writes the image's initial file system, and after it one with the guest's parameters. Linux
// unpacks both.
func (v *vm) writeBoot(path string) error {
	text, err := json.Marshal(v.parameters(v.net))
	if err != nil {
		return err
	}
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o444)
	if err != nil {
		return err
	}
	defer to.Close()
	from, err := os.Open(filepath.Join(v.dir, initrdFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	size := int64(0)
	if err == nil {
		defer from.Close()
		if size, err = io.Copy(to, from); err != nil {
			return err
		}
	}
	const directory, file = 0o040755, 0o100444
	_, err = to.Write(append(make([]byte, -size&3), guest.Archive([]guest.Entry{
		{Name: guest.File[1:], Mode: file, Data: text},
		{Name: "etc", Mode: directory},
		{Name: "etc/resolv.conf", Mode: file, Data: []byte(v.Resolv)},
		{Name: "etc/hosts", Mode: file, Data: []byte(v.Hosts)},
	})...))
	return errors.Join(err, to.Close())
}

// launch starts QEMU and waits until it has loaded the machine.
func (v *vm) launch(p shim.Plan, group cgroup.Group) (*exec.Cmd, error) {
	cmd, log, err := p.Command()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr, cmd.ExtraFiles = &v.stderr, v.theirs
	if v.tap != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, v.tap)
	}
	cmd.WaitDelay = time.Second
	if err := shim.Launch(cmd, group, func() error { return enter(v.NetNS) }); err != nil {
		return nil, err
	}
	_ = v.theirs[0].Close() // so that the monitor ends with QEMU
	if err := v.monitor.begin(); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text := v.stderr.String(); text != "" {
			err = errors.New(text)
		}
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	_ = os.Remove(filepath.Join(v.dir, bootFile))
	go v.monitor.run()
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM) // before the engine can send one
	go v.powerDown(terms)
	return cmd, nil
}

// powerDown presses the guest's power button after a SIGTERM, every second until the guest has ended: while
// it boots, it does not notice.
func (v *vm) powerDown(terms <-chan os.Signal) {
	for range terms {
		for again := time.Tick(time.Second); ; <-again {
			v.monitor.send("system_powerdown")
		}
	}
}

// exitCode returns the exit code of the guest.
func (v *vm) exitCode(s *os.ProcessState) int {
	<-v.monitor.done
	code := shim.ExitCode(s)
	switch {
	case !s.Exited(): // a signal killed it
	case code == 0 && v.monitor.reason != "guest-shutdown":
		return 1 // it was reset, as after a panic
	case code > 1 && code%2 == 1:
		return code / 2 // of the device isa-debug-exit: 2·code+1
	}
	return code
}

// socketPair returns both ends of a connection.
func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "monitor"), os.NewFile(uintptr(fds[1]), "monitor"), nil
}

// monitor is a connection in QEMU's machine protocol.
type monitor struct {
	conn   *os.File
	in     *bufio.Scanner
	done   chan struct{}
	reason string // of the shutdown; valid after done is closed
}

func newMonitor(conn *os.File) *monitor {
	return &monitor{conn: conn, in: bufio.NewScanner(conn), done: make(chan struct{})}
}

// message is a message of QEMU.
type message struct {
	QMP    json.RawMessage `json:"QMP"`
	Return json.RawMessage `json:"return"`
	Event  string          `json:"event"`
	Data   struct {
		Reason string `json:"reason"`
	} `json:"data"`
}

// begin waits until QEMU accepts commands. It does so when the machine is loaded.
func (m *monitor) begin() error {
	timer := time.AfterFunc(readyTimeout, func() { _ = m.conn.Close() })
	defer timer.Stop()
	for m.in.Scan() {
		var msg message
		switch err := json.Unmarshal(m.in.Bytes(), &msg); {
		case err != nil:
			return err
		case msg.QMP != nil:
			m.send("qmp_capabilities")
		case msg.Return != nil:
			return nil
		}
	}
	return errors.Join(m.in.Err(), io.ErrUnexpectedEOF)
}

// run reads events until QEMU ends.
func (m *monitor) run() {
	defer close(m.done)
	for m.in.Scan() {
		var msg message
		if json.Unmarshal(m.in.Bytes(), &msg) == nil && msg.Event == "SHUTDOWN" {
			m.reason = msg.Data.Reason
		}
	}
}

func (m *monitor) send(command string) {
	_, _ = fmt.Fprintf(m.conn, "{\"execute\":%q}\n", command)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-maxError):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
