//go:build linux

package dev_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/command"
	"github.com/treeline-edge/treeline/cli/dev"
)

// built has the paths of the daemons and of a workload, which are built once. Workloads run as the
// user nobody, who must have access.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func binaries(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "treeline-dev-"); built.err != nil {
			return
		}
		if built.err = os.Chmod(built.dir, 0o755); built.err != nil {
			return
		}
		const module = "github.com/treeline-edge/treeline/"
		cmd := exec.Command("go", "build", "-ldflags=-w", "-o", built.dir+"/",
			module+"root-orchestrator", module+"cluster-orchestrator", module+"node-engine", module+"testbed/workload")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build the daemons: %w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// needRoot fails or skips the test if cgroups cannot be created.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("TREELINE_TEST_REQUIRE") == "1" {
		t.Fatal("the process runtime needs root")
	}
	t.Skip("needs root: the process runtime makes cgroups and changes users")
}

// installation is a running treeline dev.
type installation struct {
	up      dev.Up
	cancel  context.CancelFunc
	ended   chan error
	stopped bool
}

// start runs treeline dev until stop or the end of the test. A failed test also ends its daemons
// and removes what they created.
func start(t *testing.T, cfg dev.Config) *installation {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	in := &installation{cancel: cancel, ended: make(chan error, 1)}
	t.Cleanup(func() {
		if in.stopped {
			return
		}
		cancel()
		<-in.ended
		leaveNothing(t, cfg)
	})
	ready := make(chan dev.Up, 1)
	go func() {
		in.ended <- dev.Run(ctx, cfg, dev.Hooks{
			Step: func(format string, args ...any) { t.Logf(format, args...) },
			Up:   func(_ context.Context, up dev.Up) error { ready <- up; return nil },
		})
	}()
	select {
	case in.up = <-ready:
	case err := <-in.ended:
		in.ended <- err // for the cleanup
		t.Fatalf("treeline dev ended: %v", err)
	}
	return in
}

// leaveNothing starts an installation again with --rm, which removes everything that it created.
func leaveNothing(t *testing.T, cfg dev.Config) {
	if _, err := os.Stat(cfg.Data); err != nil {
		return // already removed
	}
	cfg.Remove = true
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := dev.Run(ctx, cfg, dev.Hooks{
		Step: func(string, ...any) {},
		Up:   func(context.Context, dev.Up) error { cancel(); return nil },
	})
	if err != nil {
		t.Logf("workloads of %s may be left: %v", cfg.Data, err)
	}
}

func (in *installation) stop(t *testing.T) {
	t.Helper()
	in.cancel()
	in.stopped = true
	if err := <-in.ended; err != nil {
		t.Fatalf("treeline dev: %v", err)
	}
}

func (in *installation) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{URL: in.up.URL, CA: in.up.CA, Tokens: client.Static(in.up.Session.Access)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func config(t *testing.T) dev.Config {
	bin := binaries(t)
	data, err := os.MkdirTemp("", "d") // short, because paths of sockets have a maximum length
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(data) })
	return dev.Config{
		Bin: bin, Data: data, Listen: "127.0.0.1:0", Clusters: 2, Nodes: 3,
		Runtime: "process", Network: "host", Allow: []string{bin}, Tenant: "dev",
	}
}

const sla = `{"sla_version":"v2.0","applications":[{"application_name":"shop","application_namespace":"prod","microservices":[
 {"microservice_name":"web","microservice_namespace":"v1","virtualization":"process","code":%q,"cmd":["log","20"],"memory":16,"replicas":3}]}]}`

const lone = `{"sla_version":"v2.0","applications":[{"application_name":%q,"application_namespace":"prod","microservices":[
 {"microservice_name":"db","microservice_namespace":"v1","virtualization":"process","code":%q,"memory":%d}]}]}`

const small = `{"sla_version":"v2.0","applications":[{"application_name":%q,"application_namespace":"prod","microservices":[
 {"microservice_name":"db","microservice_namespace":"v1","virtualization":"process","code":%q,"cmd":["log","20"],"memory":16,"vcpus":0.1}]}]}`

// until waits for a change after which ok returns true for the application's instances.
func until(t *testing.T, c *client.Client, ok func([]api.Instance) bool) []api.Instance {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for {
		all, rev, err := c.Instances(ctx, client.ListOptions{})
		if err == nil && ok(all) {
			return all
		}
		switch {
		case errors.Is(err, api.ErrUnavailable): // the root is restarting
			time.Sleep(20 * time.Millisecond)
			continue
		case err != nil:
			t.Fatal(err)
		}
		for _, err := range client.Watch[api.Instance](ctx, c, client.Instances, client.WatchOptions{Since: rev}) {
			if err != nil && !errors.Is(err, api.ErrGone) {
				t.Fatal(err)
			}
			break // list all of them again
		}
		if ctx.Err() != nil {
			t.Fatalf("it does not come to that: %+v", all)
		}
	}
}

func running(n int) func([]api.Instance) bool {
	return func(all []api.Instance) bool {
		up := 0
		for _, i := range all {
			if i.State == api.Running && !i.Leaving {
				up++
			}
		}
		return up == n && len(all) == n
	}
}

// Real daemons join with tokens. Killed daemons are restarted. Workloads survive the end of the
// daemons, and the next start adopts them. --rm removes everything.
func TestAnInstallationLives(t *testing.T) {
	needRoot(t)
	cfg := config(t)
	in := start(t, cfg)
	if n := len(in.up.Daemons); n != 6 {
		t.Fatalf("%d daemons", n)
	}
	info, err := os.Stat(filepath.Join(cfg.Data, "admin-password"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the password's file: %v, %v", info, err)
	}
	c := in.client(t)
	doc := fmt.Sprintf(sla, filepath.Join(cfg.Bin, "workload"))
	if _, err := c.Apply(t.Context(), []byte(doc), client.ApplyOptions{Tenant: "dev"}); err != nil {
		t.Fatal(err)
	}
	before := until(t, c, running(3))

	if err := dev.Run(t.Context(), cfg, dev.Hooks{Step: t.Logf}); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a second installation in the same directory: %v", err)
	}
	for _, d := range in.up.Daemons {
		if d.Name == "root" || d.Name == "c1" || d.Name == "c1-n1" {
			if err := syscall.Kill(d.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	until(t, c, running(3))
	in.stop(t)

	in = start(t, cfg)
	after := until(t, in.client(t), running(3))
	for i := range after {
		if after[i].Epoch != before[i].Epoch || after[i].Restarts != 0 {
			t.Errorf("%s was epoch %s and is epoch %s after %d restarts: it was not adopted", after[i].ID, before[i].Epoch, after[i].Epoch, after[i].Restarts)
		}
	}
	in.stop(t)

	cfg.Remove = true
	in = start(t, cfg)
	cgroup := cgroupOf(t, in.up)
	in.stop(t)
	if _, err := os.Stat(cfg.Data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data is still there: %v", err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		if left, err := filepath.Glob(pattern + cgroup); err != nil || len(left) > 0 {
			t.Errorf("cgroups are still there: %q, %v", left, err)
		}
	}
}

// Two replicas of the root and of a cluster: both active processes are killed, one after the other, and the
// installation goes on. The next start finds everything, and --rm removes it.
func TestReplicasSurviveKills(t *testing.T) {
	needRoot(t)
	cfg := config(t)
	cfg.HA, cfg.Clusters, cfg.Nodes, cfg.FerretDB = true, 1, 1, os.Getenv("TREELINE_TEST_FERRETDB")
	if cfg.FerretDB == "" {
		const reason = "no store for replicas: set TREELINE_TEST_FERRETDB=$(scripts/ferretdb)"
		if os.Getenv("TREELINE_TEST_REQUIRE") == "1" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	in := start(t, cfg)
	t.Cleanup(func() { // before the data is removed
		for _, name := range []string{"root", "root-2", "c1", "c1-2"} {
			if b, _ := os.ReadFile(filepath.Join(cfg.Data, "logs", name+".log")); t.Failed() {
				t.Logf("the end of what %s said:\n%s", name, b[max(0, len(b)-4096):])
			}
		}
	})
	pids := map[string]int{}
	var roots []string // the first replica's URL first
	for _, d := range in.up.Daemons {
		pids[d.Name] = d.PID
		if d.Kind == "root" {
			roots = append(roots, "https://"+d.Address)
		}
	}
	if len(pids) != 7 || len(roots) != 2 { // two roots, two replicas of the cluster, a node, the store and the broker
		t.Fatalf("the daemons are %+v, want seven, two of them roots", in.up.Daemons)
	}
	c, err := client.New(client.Options{URL: in.up.URL, CA: in.up.CA, Tokens: client.Static(in.up.Session.Access), Replicas: roots})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	apply := func(app string) {
		t.Helper()
		doc := fmt.Sprintf(small, app, filepath.Join(cfg.Bin, "workload"))
		// A write is not repeated by the client if its connection broke; applying is idempotent.
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			_, err := c.Apply(t.Context(), []byte(doc), client.ApplyOptions{Tenant: "dev"})
			if err == nil {
				return
			}
			if !errors.Is(err, api.ErrUnavailable) || time.Now().After(end) {
				t.Fatalf("apply %s: %v", app, err)
			}
		}
	}
	apply("first")
	until(t, c, running(1))
	// The replicas find each other, also after each kill. The active one answers.
	members := func(active string) {
		t.Helper()
		var got string
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			all, err := c.Replicas(t.Context())
			got = fmt.Sprintf("%+v %v", all, err)
			if len(all) != 2 || !slices.ContainsFunc(all, func(r api.Replica) bool { return r.URL == active && r.Role == api.ReplicaActive }) {
				continue
			}
			if all[0].State == api.ReplicaAlive && all[1].State == api.ReplicaAlive && all[0].Version != "" && all[0].Version == all[1].Version {
				return
			}
		}
		t.Fatalf("the replicas are %s, want two that are alive, and %s active", got, active)
	}
	members(roots[0])
	// The first replicas are active, because they started before the second ones.
	for i, name := range []string{"root", "c1"} {
		began := time.Now()
		if err := syscall.Kill(pids[name], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		apply("after-" + name)
		t.Logf("after a kill of %s, a request was acknowledged in %v", name, time.Since(began))
		until(t, c, running(i+2))
		t.Logf("after a kill of %s, a new instance ran in %v", name, time.Since(began))
	}
	members(roots[1])
	in.stop(t)

	alone := cfg
	alone.HA = false
	if err := dev.Run(t.Context(), alone, dev.Hooks{Step: t.Logf}); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "--ha") {
		t.Errorf("a start without --ha: %v, want ErrConflict that names the flag", err)
	}
	wild := cfg
	wild.Listen = "0.0.0.0:0"
	if err := dev.Run(t.Context(), wild, dev.Hooks{Step: t.Logf}); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "one address") {
		t.Errorf("a start at all addresses: %v, want ErrInvalid that asks for one", err)
	}
	cfg.Remove = true
	in = start(t, cfg)
	until(t, in.client(t), running(3))
	in.stop(t)
	if _, err := os.Stat(cfg.Data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data is still there: %v", err)
	}
}

// cgroupOf returns the common cgroup of an installation's nodes, from the arguments of one of them.
func cgroupOf(t *testing.T, up dev.Up) string {
	t.Helper()
	for _, d := range up.Daemons {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.PID))
		if err != nil {
			t.Fatal(err)
		}
		args := strings.Split(string(line), "\x00")
		if i := slices.Index(args, "--process-cgroup-parent"); i >= 0 {
			return filepath.Dir(args[i+1])
		}
	}
	t.Fatal("no node names its cgroup")
	return ""
}

// noTokenIsShown searches for join tokens and operators' tokens in the installation's output, its
// daemons' logs, and the arguments of all processes.
func noTokenIsShown(t *testing.T, data, output string) {
	t.Helper()
	texts := map[string]string{"the output": output}
	files, err := filepath.Glob(filepath.Join(data, "logs", "*"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d logs (%v)", len(files), err)
	}
	arguments, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range append(files, arguments...) {
		text, err := os.ReadFile(file)
		if err == nil { // a process may have ended
			texts[file] = string(text)
		}
	}
	file := filepath.Join(data, "join-token")
	token, err := os.ReadFile(file)
	info, err2 := os.Stat(file)
	if err := errors.Join(err, err2); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the join token's file: %v, %v", info, err)
	}
	secrets := []string{strings.TrimSpace(string(token))}
	operators, _ := filepath.Glob(filepath.Join(data, "*", "operator-token"))
	for _, file := range operators {
		if text, err := os.ReadFile(file); err == nil {
			secrets = append(secrets, strings.TrimSpace(string(text)))
		}
	}
	if len(secrets) < 3 {
		t.Errorf("%d secrets of an installation with two clusters", len(secrets))
	}
	for where, text := range texts {
		for _, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s has a token: %.20s…", where, secret)
			}
		}
	}
}

// Commands that only real daemons can answer.
func TestCommandsReachNodes(t *testing.T) {
	needRoot(t)
	cfg := config(t)
	cfg.Remove = true
	home := t.TempDir()
	env := func(k string) string { return map[string]string{"XDG_CONFIG_HOME": home, "HOME": home}[k] }
	file := filepath.Join(home, "shop.json")
	if err := os.WriteFile(file, fmt.Appendf(nil, sla, filepath.Join(cfg.Bin, "workload")), 0o600); err != nil {
		t.Fatal(err)
	}
	one := func(app, code string, memory int) string {
		file := filepath.Join(home, app+".json")
		if err := os.WriteFile(file, fmt.Appendf(nil, lone, app, code, memory), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	big := one("big", filepath.Join(cfg.Bin, "workload"), 9_999_999)
	broken := one("broken", filepath.Join(cfg.Bin, "nothing"), 16)
	run := func(ctx context.Context, out io.Writer, args ...string) (string, int) {
		var stderr bytes.Buffer
		code := command.Main(ctx, args, command.IO{In: strings.NewReader(""), Out: out, Err: &stderr, Env: env, Now: time.Now})
		return stderr.String(), code
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	up := &waiter{want: "one more node:", seen: make(chan struct{})}
	ended := make(chan string, 1)
	defer func() { // even after a failure, --rm removes everything before the test ends
		cancel()
		<-ended
	}()
	go func() {
		defer close(ended)
		said, code := run(ctx, up, "dev", "--bin-dir", cfg.Bin, "--data", cfg.Data, "--clusters", "2", "--nodes", "2",
			"--runtime", "process", "--allow", cfg.Bin, "--rm")
		ended <- fmt.Sprintf("exit %d\n%s", code, said)
	}()
	select {
	case <-up.seen:
	case said := <-ended:
		t.Fatal(said)
	}
	noTokenIsShown(t, cfg.Data, up.String())
	for _, tt := range []struct {
		args string
		want []string
		code int
	}{
		{"apply -f " + file, []string{"complete", "3/3"}, 0},
		{"get nodes", []string{"c1-n1", "c2-n1", "ready", "process"}, 0},
		{"get nodes c1/c1-n1 -o json", []string{`"id": "c1-n1"`}, 0},
		{"describe node c1-n1 --cluster c1", []string{"Runtimes:", "process"}, 0},
		{"logs shop/web --tail 1", []string{"shop.prod.web.v1#0 | line", "shop.prod.web.v1#2 | line"}, 0},
		{"logs shop/web#0 --tail 1", []string{"line"}, 0},
		{"token create --node --cluster c1", []string{"--token-file -"}, 0},
		{"cordon c1-n1 --cluster c1", nil, 0},
		{"get nodes c1-n1", []string{"cordoned"}, 0},
		{"uncordon c1-n1 --cluster c1", nil, 0},
		{"why shop/web#0", []string{"RUNNING", "on cluster"}, 0},
		{"why shop/web#0", []string{"capacity for one more instance", "1 node: 1 could take it"}, 0},
		{"token list --cluster c1", []string{"USES LEFT", "node"}, 0},
		{"token revoke 0123456789ab --cluster c1", nil, 6},
		{"apply -f " + big + " --timeout SOON", nil, 3},
		// A line for each cluster and node, with the shortfall. The counts of a line add up.
		{"why big/db", []string{
			"no cluster can host it (0 of 2)", "1 node: 1 memory (need 9765.6 GiB, best free",
			"c1-n1  memory (need 9765.6 GiB, have", "c2-n1  memory", "short of", "nearest miss: c", "what would help: ask for",
		}, 0},
		{"why big/db -o json", []string{`"candidate": "c1-n1"`}, 0},
		{"wait big --timeout SOON", nil, 3},
		{"delete app big --yes --wait --timeout 2m", nil, 0},
		{"apply -f " + broken + " --timeout SOON", nil, 4},
		{"wait broken/db --timeout SOON", nil, 4},
		{"why broken/db", []string{"on cluster", "no such file"}, 0},
		{"delete app broken --yes --wait --timeout 2m", nil, 0},
		{"scale shop/web 1", nil, 0},
		{"wait shop/web#2 --for=deleted --timeout 2m", nil, 0},
		{"delete app shop --yes --wait --timeout 2m", nil, 0},
		{"get nodes --cluster c9", nil, 6},
	} {
		var out bytes.Buffer
		said, code := run(t.Context(), &out, strings.Fields(strings.ReplaceAll(tt.args, "SOON", "1s"))...)
		// On a busy machine the result may come after the timeout.
		for _, later := range []string{"10s", "60s"} {
			if code != tt.code && strings.Contains(tt.args, "SOON") {
				out.Reset()
				said, code = run(t.Context(), &out, strings.Fields(strings.ReplaceAll(tt.args, "SOON", later))...)
			}
		}
		// A workload that has just started may not have written yet.
		for begun := time.Now(); strings.HasPrefix(tt.args, "logs") && code == 0 && !containsAll(out.String(), tt.want) && time.Since(begun) < time.Minute; {
			out.Reset()
			said, code = run(t.Context(), &out, strings.Fields(tt.args)...)
		}
		if code != tt.code {
			t.Errorf("%s: exit %d, want %d\n%s%s", tt.args, code, tt.code, out.String(), said)
		}
		for _, w := range tt.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s does not say %q:\n%s%s", tt.args, w, out.String(), said)
			}
		}
	}
	cancel()
	if said := <-ended; !strings.HasPrefix(said, "exit 0") {
		t.Error(said)
	}
}

func containsAll(s string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}

// waiter is a writer that signals when a text was written.
type waiter struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
	want string
	seen chan struct{}
	once sync.Once
}

func (w *waiter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(b)
	if strings.Contains(w.text.String(), w.want) {
		w.once.Do(func() { close(w.seen) })
	}
	return len(b), nil
}

func (w *waiter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// An installation that cannot start reports what is missing, and changes nothing.
func TestWhatCannotStart(t *testing.T) {
	base := dev.Config{Bin: t.TempDir(), Data: filepath.Join(t.TempDir(), "data"), Listen: "127.0.0.1:0", Clusters: 1, Nodes: 1, Network: "host", Runtime: "process"}
	for _, tt := range []struct {
		change func(*dev.Config)
		kind   error
		says   string
	}{
		{func(*dev.Config) {}, api.ErrNotFound, "go build -o"},
		{func(c *dev.Config) { c.Clusters = 0 }, api.ErrInvalid, "clusters"},
		{func(c *dev.Config) { c.Nodes = -1 }, api.ErrInvalid, "nodes"},
		{func(c *dev.Config) { c.Network = "bridge" }, api.ErrInvalid, "host or none"},
		{func(c *dev.Config) { c.Listen = "7443" }, api.ErrInvalid, "host:port"},
	} {
		cfg := base
		tt.change(&cfg)
		err := dev.Run(t.Context(), cfg, dev.Hooks{Step: t.Logf})
		if !errors.Is(err, tt.kind) || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%v, want %q", err, tt.says)
		}
		if _, err := os.Stat(cfg.Data); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the data directory was made")
		}
	}
}
