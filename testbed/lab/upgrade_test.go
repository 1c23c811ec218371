package lab_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/gobuild"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// previous is the commit of the release that this one upgrades from. Set it to the tag of each release.
const previous = "fadcc993df2d2cf6112c45a225c457cc504254a3"

// buildPrevious builds the daemons of the previous release from the history of this repository. It skips
// the test in a clone without that history.
func buildPrevious(t *testing.T) (dir string) {
	t.Helper()
	top, err := gobuild.Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "git", "-C", top, "cat-file", "-e", previous+"^{commit}").CombinedOutput(); err != nil {
		t.Skipf("commit %s of the previous release is not in this clone (after a shallow clone, run git fetch --unshallow): %v %s", previous, err, out)
	}
	tmp := t.TempDir()
	source, dir := filepath.Join(tmp, "source"), filepath.Join(tmp, "bin")
	run := func(in string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir, cmd.Env = in, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build the previous release: %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	run(top, "git", "clone", "--quiet", "--no-checkout", "file://"+top, source)
	run(source, "git", "checkout", "--quiet", "--detach", previous)
	build := []string{"nice", "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-w", "-o", dir + "/"}
	for _, p := range []string{"root-orchestrator", "cluster-orchestrator", "node-engine", "netmanager"} {
		build = append(build, "./"+p)
	}
	run(source, build...)
	return dir
}

// TestRollingUpgrade starts an installation of the previous release and replaces its daemons one after the
// other by those of this release, nodes before and after the orchestrators. At most a few callers lose a request, no
// instance restarts, and each mixture of releases rolls out a new version. Afterwards the previous
// release of each daemon works with the data of this one.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	old := buildPrevious(t)
	u := newUpdated(t, lab.Options{Bin: old})
	u.call()
	u.more(t, 20)
	running := func() []lab.Workload {
		t.Helper()
		return []lab.Workload{u.Workload(u.ID("shop", "client", 0)), u.Workload(u.ID("shop", "web", 0)), u.Workload(u.ID("shop", "web", 1))}
	}
	rolls := func(t *testing.T) {
		t.Helper()
		u.update(func(m *api.Microservice) { m.Update.Deadline = 60 })
		if r := u.over(t); r.State != api.RollOutHealthy || r.Failed != 0 {
			t.Fatalf("the roll-out is %s", r.Standing())
		}
		u.Wait("two are left", func(v lab.View) bool { return len(v.Instances) == 2+1 && u.Running("shop", "web", 2)(v) })
		u.more(t, 10)
	}
	continues := func(t *testing.T, was []lab.Workload, by string) {
		t.Helper()
		u.Wait("all nodes take work", lab.Nodes("c1", 3))
		u.more(t, 10)
		for _, w := range was {
			if !w.Alive() {
				t.Errorf("%s was stopped by %s", w.Instance, by)
			}
		}
	}
	engine := func(n int) func() { return func() { u.Nodes[n].Upgrade(lab.Bin(t)); u.Nodes[n].Start() } }
	network := func(n int) func() { return func() { u.Nodes[n].Net.Upgrade(lab.Bin(t)); u.Nodes[n].Net.Start() } }
	for _, step := range []struct {
		what    string
		upgrade []func()
		names   bool // the netmanager that answers the callers' DNS queries is replaced first
	}{
		{"a node below an older cluster", []func(){engine(1), network(1)}, false},
		{"the root above an older cluster", []func(){func() { u.Root.Upgrade(lab.Bin(t)); u.StartRoot() }}, false},
		{"the cluster above older nodes", []func(){func() { u.First.Upgrade(lab.Bin(t)); u.First.Start() }}, false},
		{"the other nodes", []func(){network(0), engine(0), engine(2), network(2)}, true},
	} {
		t.Run(step.what, func(t *testing.T) {
			defer u.For(t)()
			u.forget()
			was, answers := running(), time.Now()
			for i, up := range step.upgrade {
				if up(); i == 0 && step.names {
					answers = time.Now()
				}
				u.more(t, 10)
			}
			continues(t, was, "the upgrade")
			rolls(t)
			u.fewLost(t, "an upgrade", func(l loss) bool {
				// DNS queries to a netmanager that is being replaced are not answered. Resolvers repeat them.
				_, query := errors.AsType[*net.DNSError](l.Err)
				return query && l.Began.Before(answers)
			})
		})
	}
	t.Run("downgrade", func(t *testing.T) {
		defer u.For(t)()
		was := running()
		for _, d := range []struct {
			proc  *lab.Proc
			start func()
		}{{u.Root, u.StartRoot}, {u.First.Proc, u.First.Start}, {u.Nodes[1].Proc, u.Nodes[1].Start}, {u.Nodes[1].Net, u.Nodes[1].Net.Start}} {
			d.proc.Upgrade(old)
			d.start()
			u.more(t, 10)
			d.proc.Upgrade(lab.Bin(t))
			d.start()
		}
		continues(t, was, "a downgrade")
		u.forget()
		rolls(t)
		u.fewLost(t, "a roll-out after a downgrade", nil)
	})
}
