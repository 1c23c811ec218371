package lab_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/remote"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

// running is a treeline that has not ended.
type running struct {
	t    *testing.T
	cmd  *exec.Cmd
	mu   sync.Mutex // guards out
	out  bytes.Buffer
	done chan struct{}
}

// Write implements io.Writer.
func (r *running) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(p)
}

func (r *running) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String()
}

// begin starts treeline with a token. Without a terminal its output is collected.
func begin(t *testing.T, l *lab.Lab, token string, args ...string) *running {
	t.Helper()
	r := &running{t: t, cmd: l.Command(token, args...), done: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = r, r
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.await()
	return r
}

func (r *running) await() {
	go func() {
		_ = r.cmd.Wait()
		close(r.done)
	}()
	r.t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.done
	})
}

// says waits until the output matches, and returns the match.
func (r *running) says(pattern string) []string {
	r.t.Helper()
	re := regexp.MustCompile(pattern)
	var found []string
	lab.Within(r.t, time.Minute, "treeline prints "+pattern, func() error {
		if found = re.FindStringSubmatch(r.text()); found == nil {
			return fmt.Errorf("it printed %q", r.text())
		}
		return nil
	})
	return found
}

// ends waits for the end of treeline and checks the exit code and what it says.
func (r *running) ends(code int, pattern string) {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(time.Minute):
		r.t.Fatalf("treeline %v did not end: %s", r.cmd.Args[1:], r.text())
	}
	if got := r.cmd.ProcessState.ExitCode(); got != code || !regexp.MustCompile(pattern).MatchString(r.text()) {
		r.t.Errorf("treeline %v: exit code %d, %q; want %d and %q", r.cmd.Args[1:], got, r.text(), code, pattern)
	}
}

// TestAccessBehindNAT uses exec, attach, cp and port-forward with an instance on a node behind a NAT.
func TestAccessBehindNAT(t *testing.T) {
	t.Parallel()
	containers(t)
	o := lab.NewOverlay(t, lab.Options{})
	const tools = "treeline.local/tools:1"
	tar, err := exec.LookPath("tar")
	if err != nil {
		t.Fatal(err)
	}
	if err := image.WriteFile(filepath.Join(o.Containerd().Images, "tools.tar"), image.Image{Ref: tools, Binary: o.Program, Programs: []string{tar}}); err != nil {
		t.Fatal(err)
	}
	node := o.Node(o.First, netlab.PortRestricted)
	o.Ready(o.First, 1)
	m := o.Container("echo", 1)
	m.Code, m.Cmd, m.Environment = tools, []string{"/app", "echo"}, []string{"PORT=7"}
	dead := o.Container("dead", 1)
	dead.Cmd, dead.OneShot = []string{"/app", "exit", "0"}, true
	cat, screen := o.Container("cat", 1), o.Container("screen", 1)
	cat.Cmd, cat.Stdin = []string{"/app", "cat"}, true
	screen.Cmd, screen.Stdin, screen.TTY = []string{"/app", "size"}, true, true
	o.Apply(lab.App("shop", lab.Needing(m, 0.1, 256), lab.Needing(dead, 0.1, 64), lab.Needing(cat, 0.1, 64), lab.Needing(screen, 0.1, 64)))
	o.Wait("it runs", o.Running("shop", "echo", 1))
	id := o.ID("shop", "echo", 0)
	token := o.Access()
	run := func(args ...string) *running { t.Helper(); return begin(t, o.Lab, token, args...) }
	onlyTheWorkload := func(when string) {
		t.Helper()
		lab.Within(t, time.Minute, "only the workload's process is left "+when, func() error {
			if all := o.WorkloadsOf(id); len(all) != 1 {
				return fmt.Errorf("%d processes: %+v", len(all), all)
			}
			return nil
		})
	}

	works := func(when string) {
		t.Helper()
		lab.Within(t, time.Minute, "access works again "+when, func() error {
			r := run("exec", "shop/echo", "/app", "exit", "3")
			<-r.done
			if code := r.cmd.ProcessState.ExitCode(); code != 3 {
				return fmt.Errorf("exit code %d: %s", code, r.text())
			}
			return nil
		})
	}

	t.Run("top", func(t *testing.T) {
		// The numbers come from the control group and the network namespace of the container.
		run("top", "instances", "shop/echo#0").ends(0, `(?m)^NAME +CPU +MEMORY +IN +OUT +CLUSTER\nshop\S*echo\S*#0 +\d+m +[0-9.]+Mi +[0-9.]+kB/s +[0-9.]+kB/s +\S+$`)
		run("top", "nodes", "-o", "wide").ends(0, `(?m)^`+string(node.ID)+` +\S+ +\d+m +[1-9][0-9.]*Mi `)
		watch := run("top", "instances", "shop", "-w", "--interval", "1s", "-o", "json", "--sort-by", "-cpu")
		watch.says(`(?s)"memory_bytes":[1-9].*\n.*"memory_bytes":[1-9]`)
		run("top", "instances", "shop/none").ends(6, "shop/none")
		run("top", "instances", "--interval", "1ms", "-w").ends(2, "at least 1s")
	})
	t.Run("exec", func(t *testing.T) {
		run("exec", "shop/echo#0", "--", "/app", "exit", "7").ends(7, "^$")
		run("exec", "shop/echo", "/app", "env").ends(0, `TREELINE_INSTANCE=`+regexp.QuoteMeta(string(id)))
		run("exec", "shop/echo", "/no/such/program").ends(1, "start .*no such file")
		o.Wait("the one-shot has ended", lab.Is(o.ID("shop", "dead", 0), func(i api.Instance) bool { return i.State == api.Completed }))
		run("exec", "shop/dead#0", "/app", "env").ends(7, "does not run: it is completed")
	})
	t.Run("terminal", func(t *testing.T) {
		r := &running{t: t, cmd: o.Command(token, "exec", "-it", "shop/echo", "/app", "size"), done: make(chan struct{})}
		tty, err := pty.StartWithSize(r.cmd, &pty.Winsize{Cols: 91, Rows: 17})
		if err != nil {
			t.Fatal(err)
		}
		defer tty.Close()
		go io.Copy(r, tty)
		r.await()
		r.says("91x17")
		if err := pty.Setsize(tty, &pty.Winsize{Cols: 120, Rows: 40}); err != nil {
			t.Fatal(err)
		}
		r.says("120x40")
		_, _ = io.WriteString(tty, "\x03")
		r.ends(0, "91x17")
	})
	t.Run("attach", func(t *testing.T) {
		run("attach", "-i", "shop/echo").ends(7, "its service has no input.*stdin: true")
		// The end of the node engine is not the end of the input.
		o.Wait("the copying workload runs", o.Running("shop", "cat", 1))
		was := o.Workload(o.ID("shop", "cat", 0))
		attach := func() (*running, io.WriteCloser) {
			r := &running{t: t, cmd: o.Command(token, "attach", "-i", "shop/cat"), done: make(chan struct{})}
			r.cmd.Stdout, r.cmd.Stderr = r, r
			in, err := r.cmd.StdinPipe()
			if err == nil {
				err = r.cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			r.await()
			r.says("attached")
			return r, in
		}
		r, in := attach()
		_, _ = io.WriteString(in, "before\n")
		r.says("(?m)^before$")
		node.Kill9()
		r.ends(8, "stream interrupted")
		node.Start()
		var again *running
		lab.Within(t, time.Minute, "the input is open again", func() error {
			again, in = attach()
			_, _ = io.WriteString(in, "after\n")
			for range 50 {
				if strings.Contains(again.text(), "after\n") {
					return nil
				}
				time.Sleep(50 * time.Millisecond)
			}
			return errors.New(again.text())
		})
		if !was.Alive() {
			t.Error("the workload ended with the node engine, want it to keep running")
		}
		_ = in.Close() // the end of the input ends the workload
		again.ends(0, "after")

		s := &running{t: t, cmd: o.Command(token, "attach", "-it", "shop/screen"), done: make(chan struct{})}
		tty, err := pty.StartWithSize(s.cmd, &pty.Winsize{Cols: 91, Rows: 17})
		if err != nil {
			t.Fatal(err)
		}
		defer tty.Close()
		go io.Copy(s, tty)
		s.await()
		s.says("91x17")
		if err := pty.Setsize(tty, &pty.Winsize{Cols: 120, Rows: 40}); err != nil {
			t.Fatal(err)
		}
		s.says("120x40")
		_, _ = io.WriteString(tty, "\x10\x11")
		s.ends(0, "120x40")
		if i := o.Instance(o.ID("shop", "screen", 0)); i.State != api.Running || i.Restarts > 0 {
			t.Errorf("the workload after the user left its terminal is %s with %d restarts, want it to run", i.Standing(), i.Restarts)
		}
	})
	t.Run("copy", func(t *testing.T) {
		dir := t.TempDir()
		text := make([]byte, 50<<20)
		_, _ = rand.Read(text)
		if err := os.WriteFile(filepath.Join(dir, "there"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		run("cp", filepath.Join(dir, "there"), "shop/echo#0:/tmp/").ends(0, "^$")
		run("cp", "shop/echo#0:/tmp/there", filepath.Join(dir, "back")).ends(0, "^$")
		back, err := os.ReadFile(filepath.Join(dir, "back"))
		if err != nil || sha256.Sum256(back) != sha256.Sum256(text) {
			t.Errorf("a file that was copied there and back has %d bytes, %v; want the same %d", len(back), err, len(text))
		}
		run("cp", "shop/echo#0:/tmp/missing", dir).ends(1, "Cannot stat|No such file")
	})
	t.Run("port-forward", func(t *testing.T) {
		r := run("port-forward", "shop/echo", ":7", ":7/udp", ":9")
		at := map[string]string{}
		for _, p := range []string{"tcp is forwarded to port 7 ", "udp is forwarded to port 7 ", "tcp is forwarded to port 9 "} {
			at[p] = r.says(`(127\.0\.0\.1:\d+)/` + p)[1]
		}
		c, err := net.Dial("tcp", at["tcp is forwarded to port 7 "])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		text := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
		go func() {
			_, _ = c.Write(text)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, text) {
			t.Errorf("TCP: %d bytes came back, %v; want %d", len(got), err, len(text))
		}
		u, err := net.Dial("udp", at["udp is forwarded to port 7 "])
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		lab.Within(t, time.Minute, "a datagram comes back", func() error {
			_, _ = io.WriteString(u, "datagram")
			_ = u.SetReadDeadline(time.Now().Add(5 * time.Second))
			buf := make([]byte, 100)
			n, err := u.Read(buf)
			if err == nil && string(buf[:n]) != "datagram" {
				t.Errorf("UDP: %q came back", buf[:n])
			}
			return err
		})
		closed, err := net.Dial("tcp", at["tcp is forwarded to port 9 "])
		if err != nil {
			t.Fatal(err)
		}
		defer closed.Close()
		r.says("9/tcp: port 9/tcp of .*: connection refused: no process")
		_ = r.cmd.Process.Signal(os.Interrupt)
		r.ends(0, "forwarded")
	})
	t.Run("rights", func(t *testing.T) {
		people := func(name string, role rights.Role) (who *client.Client, token string) {
			return o.UserWithToken(name, string(role))
		}
		_, otto := people("otto", rights.InfrastructureProvider)
		begin(t, o.Lab, otto, "exec", string(id), "/app", "env").ends(5, "apps:exec|Forbidden|forbidden|takes one of|apps:read")
		_, alice := people("alice", rights.ApplicationProvider)
		r := begin(t, o.Lab, alice, "exec", string(id), "/app", "ignore-term")
		r.says("ignoring")
		_, err := o.API.Do(t.Context(), client.Request{
			Method: http.MethodPut, Path: "/v1/users/" + api.PathOf(string(o.Tenant)+"/alice"), Header: http.Header{"If-Match": {"*"}},
			Body: map[string]any{"roles": []rights.Role{rights.ApplicationProvider}, "disabled": true},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.ends(5, "authorization of this stream has ended|token")
		onlyTheWorkload("after the user lost the right")
		all, _, err := o.API.Events(t.Context(), client.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var records []string
		for _, e := range all {
			if e.Instance == id && e.Reason == api.ReasonAccess {
				records = append(records, e.Detail)
			}
		}
		for _, want := range []string{
			`^exec /app exit 7 by admin$`, `^exec /app exit 7 by admin ended after \S+ with exit code 7$`, `^exec /app size \(in a terminal\) by admin$`,
			`^port-forward by admin ended after`, `^exec /app ignore-term by .*/alice$`, `^exec /app ignore-term by .*/alice ended after \S+: .*(authorization|CANCEL)`, // the cluster may end it first
		} {
			if !regexp.MustCompile(`(?m)` + want).MatchString(strings.Join(records, "\n")) {
				t.Errorf("no record %s in:\n%s", want, strings.Join(records, "\n"))
			}
		}
	})
	t.Run("through the cluster's own port", func(t *testing.T) {
		var access struct {
			Token string `json:"token"`
		}
		if _, err := o.API.Do(t.Context(), client.Request{Method: http.MethodPost, Path: "/v1/clusters/" + string(o.First.ID) + "/access"}, &access); err != nil {
			t.Fatal(err)
		}
		conn, err := remote.Dial(t.Context(), o.First.As(client.Static(access.Token)), id, "exec", client.ExecQuery(api.Exec{Args: []string{"/app", "exit", "5"}}))
		if err != nil {
			t.Fatal(err)
		}
		if code, err := remote.Output(conn, io.Discard, io.Discard); code != 5 || err != nil {
			t.Errorf("exec through the cluster: exit code %d, %v; want 5", code, err)
		}
		_ = conn.Close()
		want := regexp.MustCompile(`exec /app exit 5 by admin ended after \S+ with exit code 5`)
		shows := func() error {
			r := run("events", "--cluster", string(o.First.ID))
			<-r.done
			if !want.MatchString(r.text()) {
				return errors.New(r.text())
			}
			return nil
		}
		lab.Within(t, time.Minute, "the cluster shows the record", shows)
		o.First.Restart()
		lab.Within(t, time.Minute, "the cluster shows the record after a restart", shows)
		works("after the restart of the cluster")
	})
	t.Run("restarts", func(t *testing.T) {
		for _, c := range []struct {
			what  string
			kill  *lab.Proc
			start func()
			says  string
		}{
			{"node engine", node.Proc, node.Start, "(?s)stream interrupted: .*its node or cluster .*run the command again"},
			{"cluster", o.First.Proc, o.First.Start, "(?s)stream interrupted: .*its node or cluster .*run the command again"},
			{"root", o.Root, o.StartRoot, "(?s)stream interrupted: .*the server ended or cannot be reached.*run the command again"},
		} {
			r := run("exec", "shop/echo", "/app", "ignore-term")
			r.says("ignoring")
			f := run("port-forward", "shop/echo", ":7")
			f.says("is forwarded")
			a := run("attach", "shop/echo")
			a.says("attached to")
			one := run("logs", "-f", "shop/echo#0")
			one.says("listening")
			all := run("logs", "-f", "shop/echo")
			all.says("listening")
			c.kill.Kill9()
			for _, r := range []*running{r, f, a, one} {
				r.ends(8, c.says)
			}
			if c.kill == o.Root {
				all.ends(8, "the root does not answer: run the command again")
			} else {
				all.says("its node or cluster .*they go on")
			}
			c.start()
			onlyTheWorkload("after the end of the " + c.what)
			works("after the restart of the " + c.what)
		}
	})
}

// TestLogsFollowAService follows a service whose instances restart, move to another node and start in
// another cluster, until it is deleted.
func TestLogsFollowAService(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	munich := l.Cluster("munich", lab.ClusterOptions{Args: []string{"--dead", "7s"}})
	munich.Node("n1", lab.NodeOptions{})
	l.Wait("a node takes work", lab.Nodes("munich", 1))
	web, once := lab.Needing(l.Process("web", 1), 0.6, 64), lab.Needing(l.Process("once", 1), 0.1, 64)
	web.Cmd = []string{"log", "4"}
	once.Cmd, once.OneShot = []string{"log", "0", "3"}, true
	l.Apply(lab.App("shop", web, once))
	l.Wait("it runs", l.Running("shop", "web", 1))
	token := l.Access()
	all := begin(t, l, token, "logs", "-f", "shop/web")
	all.says(`web\S*#0 +\| line 0\n`)
	all.says(`web\S*#0 +\| line 9\n`)
	begin(t, l, token, "logs", "-f", "shop/once").ends(0, `(?s)line 2\n.*all instances of .*once.* have ended`)
	late := begin(t, l, token, "logs", "-f", "--since", "1s", "shop")
	late.says(`web\S*#0 +\| line \d\d`)
	if strings.Contains(late.text(), "| line 1\n") && !strings.Contains(late.text(), "once.lab#0") {
		t.Errorf("--since 1s shows a line of 2 s ago: %s", late.text())
	}

	oslo := l.Cluster("oslo", lab.ClusterOptions{Args: []string{"--dead", "7s"}})
	n2 := oslo.Node("n2", lab.NodeOptions{})
	l.Wait("a node takes work", lab.Nodes("oslo", 1))
	l.Scale("shop", "web", 2)
	for _, r := range []*running{all, late} {
		r.says(`web\S*#1 +\| line 0\n`)
	}
	lab.Within(t, time.Minute, "the first instance is killed", func() error { l.Workload(l.ID("shop", "web", 0)).Kill9(); return nil })
	all.says(`(?s)web\S*#0 +\| line 9\n.*web\S*#0 +\| line 0\n`)

	n3 := oslo.Node("n3", lab.NodeOptions{})
	l.Wait("another node takes work", lab.Nodes("oslo", 2))
	n2.KillAll()
	all.says(`(?s)web\S*#1 +\| line 0\n.*logs of .*web\S*#1: .*they go on.*web\S*#1 +\| line 0\n`)
	n3.Kill9()
	n3.Start()
	all.says(`(?s)they go on.*web\S*#1 +\| line 0\n.*they go on.*web\S*#1 +\| line \d`)
	l.Delete("shop")
	for _, r := range []*running{all, late} {
		r.ends(0, `shop.* was deleted`)
	}
}
