package lab_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestVolumesSurviveKill9 kills the engine and a node while an instance has a local volume. Nothing that
// it synced is lost, nothing is mounted twice or left behind, and it does not start elsewhere.
func TestVolumesSurviveKill9(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	c := l.Cluster("munich", lab.ClusterOptions{})
	nodes := map[string]*lab.Node{"n1": c.Node("n1", containers(t)), "n2": c.Node("n2", containers(t))}
	l.Wait("both nodes take work", lab.Nodes("munich", 2))
	db := l.Container("db", 1)
	db.Cmd = []string{"/app", "journal", "/data/pages"}
	db.Volumes = []api.Volume{
		{Name: "pages", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 16},
		{Name: "scratch", Type: api.VolumeEphemeral, MountPath: "/scratch", SizeMB: 16},
	}
	l.Apply(lab.App("shop", db))
	l.Wait("db runs", l.Running("shop", "db", 1))
	id := l.ID("shop", "db", 0)
	home := nodes[l.Workload(id).Node]
	volumes := filepath.Join(home.Data, "volumes")
	starts := 1
	// check compares the number of lines in the journal with the number of starts.
	check := func(t *testing.T) {
		t.Helper()
		lab.Within(t, time.Minute, "each start has its line in the journal", func() error {
			found, err := filepath.Glob(filepath.Join(volumes, "*", "mnt", "data", "pages"))
			if err != nil || len(found) != 1 {
				return fmt.Errorf("journals in %s: got %v, %v, want one", volumes, found, err)
			}
			text, err := os.ReadFile(found[0])
			if n := strings.Count(string(text), string(id)+" "); err != nil || n != starts {
				return fmt.Errorf("%d lines, %v, want %d:\n%s", n, err, starts, text)
			}
			return nil
		})
		if m := lab.MountsUnder(volumes); len(m) != 2 {
			t.Errorf("mounts: got %v, want one for each volume", m)
		}
	}
	check(t)

	sub(t, l, "engine and workload", func(t *testing.T) {
		w, was := l.Workload(id), l.Instance(id)
		gone := w.Gone(l)
		home.Kill9()
		w.Kill9()
		l.WaitGone("db", gone)
		home.Start()
		l.Wait("db runs again", lab.Is(id, func(i api.Instance) bool { return i.Restarts > was.Restarts && i.State == api.Running }))
		starts++
		check(t)
	})

	sub(t, l, "node", func(t *testing.T) {
		home.KillAll()
		l.Wait("the cluster misses the node", lab.Is(id, func(i api.Instance) bool { return i.Reason == api.ReasonNodeLost }))
		time.Sleep(2 * time.Second) // long enough to start it elsewhere
		if all := l.WorkloadsOf(id); len(all) > 0 {
			t.Errorf("db runs as %+v while its node is off, want it to wait", all)
		}
		if out := l.CLI("why", "shop/db#0"); !strings.Contains(out, "volume") {
			t.Errorf("why does not name the volume:\n%s", out)
		}
		home.Start()
		l.Wait("db runs again", lab.Is(id, func(i api.Instance) bool { return i.State == api.Running && i.Reason != api.ReasonNodeLost }))
		if now := l.Workload(id); now.Node != home.Name {
			t.Errorf("db runs on %s, its volume is on %s", now.Node, home.Name)
		}
		starts++
		check(t)
	})

	sub(t, l, "deletion", func(t *testing.T) {
		if out, err := l.TryCLI("delete", "volume", "shop/db#0:pages", "--yes"); err == nil || !strings.Contains(out+err.Error(), "has it") {
			t.Errorf("delete a volume in use: got %v\n%s", err, out)
		}
		l.Delete("shop")
		l.Wait("db is gone", l.Gone("shop"))
		if m := lab.MountsUnder(volumes); len(m) != 0 {
			t.Errorf("mounts after the application was deleted: %v", m)
		}
		if out := l.CLI("get", "volumes"); !strings.Contains(out, "pages") || !strings.Contains(out, "16 MiB") {
			t.Errorf("volumes:\n%s", out)
		}
		l.CLI("delete", "volume", string(id.Volume("pages")), "--yes")
		if left, _ := filepath.Glob(filepath.Join(volumes, "*", "disk.img")); len(left) > 0 {
			t.Errorf("left after the volume was deleted: %v", left)
		}
	})
}
