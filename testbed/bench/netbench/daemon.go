package netbench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/gobuild"
)

func init() { roles["daemon"] = as(runDaemon) }

// Daemon returns Treeline's real path: a netmanager on each node, from that binary. The network
// between the nodes determines the kind of path: in an unencrypted network it is a plain route
// or, without a common link, VXLAN. Otherwise it is the tunnel, which needs a relay if the nodes
// are Apart.
func Daemon(program, plane string, kind api.PathKind) *DaemonPath {
	return &DaemonPath{program: program, plane: plane, kind: kind}
}

// DaemonPath is the Path of Daemon.
type DaemonPath struct {
	program, plane string
	kind           api.PathKind

	services, nodes int // of the crowd

	cluster *cluster
	pids    []int
}

// Target implements Path.
func (*DaemonPath) Target() netip.Addr { return one }

// Replicas implements Path.
func (*DaemonPath) Replicas() []netip.Addr { return []netip.Addr{all} }

// Processes implements Path.
func (d *DaemonPath) Processes() []int { return d.pids }

// Up implements Path.
func (d *DaemonPath) Up(ctx context.Context, b *Bed) error {
	if d.kind == api.PathVXLAN { // the nodes have no common link
		for i, n := range b.Node {
			if err := n.IP(ctx,
				fmt.Sprintf("addr del %s/24 dev %s", WireAddr[i], WireDevice),
				fmt.Sprintf("addr add %s/32 dev %s", WireAddr[i], WireDevice),
				fmt.Sprintf("route add %s dev %s", WireAddr[1-i], WireDevice)); err != nil {
				return err
			}
		}
	}
	var err error
	if d.cluster, err = newCluster(); err != nil {
		return err
	}
	b.ends = append(b.ends, d.cluster.close)
	switch d.kind {
	case api.PathRoute, api.PathVXLAN:
		d.cluster.unencrypted = []netip.Prefix{netip.PrefixFrom(WireAddr[0], 24).Masked()}
	case api.PathRelay:
		c, err := b.start(b.wan, "relay", relayOrder{relayAddr, []uint32{1, 2}})
		if err != nil {
			return err
		}
		d.pids = append(d.pids, c.pid())
		d.cluster.relayed = true
	}
	for i, n := range b.Node {
		if err := d.start(ctx, b, i, n); err != nil {
			return err
		}
	}
	a, others := b.Container[0], append([]*Namespace{b.Container[1]}, b.More...)
	if err := d.cluster.attach(ctx, 0, a, "caller", 0, netip.Addr{}); err != nil {
		return err
	}
	for i, n := range others {
		name, number, vip := "all", i, all
		if i == 0 {
			name, number, vip = "one", 0, one
		}
		if err := d.cluster.attach(ctx, 1, n, name, number, vip); err != nil {
			return err
		}
	}
	if err := d.Settle(ctx, b); err != nil || d.services == 0 {
		return err
	}
	if err := d.cluster.crowd(d.services, d.nodes); err != nil {
		return err
	}
	return d.touched(ctx, b)
}

// start starts a node's netmanager and waits until it can attach.
func (d *DaemonPath) start(ctx context.Context, b *Bed, i int, n *Namespace) error {
	h, err := d.cluster.host(i)
	if err != nil {
		return err
	}
	c, err := b.start(n, "daemon", daemonOrder{Program: d.program, Log: filepath.Join(h.dir, "log"), Args: []string{
		"--data", filepath.Join(h.dir, "net"), "--credentials", h.dir, "--socket", h.socket, "--plane", d.plane,
	}})
	if err != nil {
		return err
	}
	line, err := c.out.ReadString('\n')
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, c.why(err))
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	d.pids = append(d.pids, pid)
	go h.engine(d.cluster.ctx)
	select {
	case <-h.ready:
		return nil
	case <-c.done:
		return fmt.Errorf("%s: %w: %s", c.name, c.why(io.EOF), tail(filepath.Join(h.dir, "log")))
	case <-time.After(sessionTime):
		return fmt.Errorf("%s did not become ready: %s", c.name, tail(filepath.Join(h.dir, "log")))
	}
}

// Settle waits until packets use the expected path, because an idle path may have to be found
// again.
func (d *DaemonPath) Settle(ctx context.Context, b *Bed) error {
	late := time.Now().Add(sessionTime)
	for {
		passed := true
		for _, to := range []netip.Addr{one, all} {
			if to == all && len(b.More) == 0 {
				continue
			}
			passed = passed && b.Container[0].Run(ctx, "", "ping", "-c", "1", "-W", "1", to.String()) == nil
		}
		strays := d.Check(ctx)
		if passed && strays == nil {
			return nil
		}
		if time.Now().After(late) || ctx.Err() != nil {
			return fmt.Errorf("packets pass: %t; path: %w; %s", passed, strays, tail(filepath.Join(d.cluster.hosts[0].dir, "log")))
		}
		select {
		case <-time.After(100 * time.Millisecond): // traffic makes netmanagers look for paths
		case <-ctx.Done():
		}
	}
}

// Check returns an error unless packets use the expected path in both directions. Each
// netmanager chooses the path of the packets that its own node sends.
func (d *DaemonPath) Check(ctx context.Context) error {
	for i := range 2 {
		if path, why := d.pathOf(ctx, i); path != d.kind {
			return fmt.Errorf("node %d uses the path %q, want %q: %s", i+1, path, d.kind, why)
		}
	}
	return nil
}

// pathOf returns the path of a node's netmanager to the other node, and the reason why it is no
// better one.
func (d *DaemonPath) pathOf(ctx context.Context, node int) (api.PathKind, string) {
	all, err := d.cluster.hosts[node].peers(ctx)
	if err != nil {
		return "", err.Error()
	}
	for _, p := range all {
		if p.Node == d.cluster.hosts[1-node].lease.Node {
			return p.Path, p.Reason
		}
	}
	return "", "the peer is not known"
}

func tail(path string) string {
	text, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

type daemonOrder struct {
	Program string
	Args    []string
	Log     string
}

// runDaemon runs a program that ends with this process, also if that is killed. It reports the
// program's process id.
func runDaemon(ctx context.Context, o daemonOrder, ready func()) (any, error) {
	log, err := os.Create(o.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	runtime.LockOSThread() // for the kernel the parent of a child is the thread that started it
	cmd := exec.CommandContext(ctx, o.Program, o.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience / 2
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ready()
	out := bufio.NewWriter(os.Stdout)
	_, _ = fmt.Fprintln(out, cmd.Process.Pid)
	if err := errors.Join(out.Flush(), cmd.Wait()); ctx.Err() == nil {
		return nil, fmt.Errorf("%s ended: %w", o.Program, err)
	}
	return nil, nil
}

// sessionTime bounds a binding and a handshake.
const sessionTime = time.Minute

// Build builds the netmanager into dir, an absolute path, and returns the program's path.
// If the directory in TREELINE_LAB_BIN has the program, Build returns that instead.
func Build(dir string) (string, error) {
	if have := os.Getenv("TREELINE_LAB_BIN"); have != "" {
		if program := filepath.Join(have, "netmanager"); exists(program) {
			return program, nil
		}
	}
	return filepath.Join(dir, "netmanager"), gobuild.Build(context.Background(), dir+"/", "netmanager")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
