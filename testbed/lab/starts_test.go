package lab_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/csidriver"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestKillsWhileInstancesStart kills containerd, the engine and the cluster at moments that are spread over
// the start of instances with local, ephemeral and CSI volumes, and over their restart. The instances run
// afterwards, once each. Nothing is mounted twice, nothing that they synced is lost, and nothing is left
// behind when they are deleted.
func TestKillsWhileInstancesStart(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	const driver = "dirs.test.example"
	dirs := filepath.Join(l.Dir, "dirs")
	if err := os.Mkdir(dirs, 0o755); err != nil {
		t.Fatal(err)
	}
	storage := csidriver.NewStorage(csidriver.Options{Name: driver, Dir: dirs})
	serve := func(name string) []string {
		socket := filepath.Join(l.Dir, name+".csi")
		s, err := csidriver.Serve(socket, storage, name, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return []string{"--csi", driver + "=" + socket, "--csi-timeout", "2s"}
	}
	o := steady()
	o.Args = append(o.Args, serve("controller")...)
	c := l.Cluster("munich", o)
	host := containers(t)
	host.Args = serve("n1")
	n1 := c.Node("n1", host)
	t.Cleanup(func() { storage.Forget("n1") })
	l.Wait("the node takes work", lab.Nodes("munich", 1))

	const replicas = 2
	db := l.Container("db", replicas)
	db.Cmd = []string{"/app", "journal", "/data/pages"}
	db.Volumes = []api.Volume{
		{Name: "pages", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 16},
		{Name: "scratch", Type: api.VolumeEphemeral, MountPath: "/scratch", SizeMB: 16},
		{Name: "disk", Driver: driver, MountPath: "/disk", SizeMB: 16},
	}
	local, csi := filepath.Join(n1.Data, "volumes"), filepath.Join(n1.Data, "csi")
	// lines returns the lines of an instance's journal, each of which it synced at a start.
	lines := func(id api.InstanceID) (n int) {
		all, _ := filepath.Glob(filepath.Join(local, "*", "mnt", "data", "pages"))
		for _, path := range all {
			text, _ := os.ReadFile(path)
			n += strings.Count(string(text), string(id)+" ")
		}
		return n
	}
	mounts := func() (all []string) {
		all = append(lab.MountsUnder(local), lab.MountsUnder(csi)...)
		slices.Sort(all)
		return all
	}
	ids := func(app string) (all []api.InstanceID) {
		for n := range replicas {
			all = append(all, l.ID(app, "db", n))
		}
		return all
	}
	// check waits until each instance has written at least the lines, and looks at processes and mounts.
	check := func(t *testing.T, app string, atLeast map[api.InstanceID]int) {
		t.Helper()
		l.Wait(app+" runs", l.Running(app, "db", replicas))
		lab.Within(t, time.Minute, "each instance runs once and has its volumes", func() error {
			for _, id := range ids(app) {
				if all := l.WorkloadsOf(id); len(all) != 1 {
					return fmt.Errorf("%s runs as %+v, want one process", id, all)
				}
				if n := lines(id); n < max(1, atLeast[id]) {
					return fmt.Errorf("journal of %s: %d lines, want at least %d", id, n, max(1, atLeast[id]))
				}
			}
			all := mounts()
			if len(all) != len(slices.Compact(slices.Clone(all))) || len(all) != 4*replicas { // staged and published
				return fmt.Errorf("mounts: got %v, want %d, none twice", all, 4*replicas)
			}
			return nil
		})
		if bad := storage.Violations(); len(bad) > 0 {
			t.Errorf("violations of the driver's contract: %v", bad)
		}
	}
	remove := func(t *testing.T, app string) {
		t.Helper()
		all := ids(app)
		l.Delete(app)
		l.Wait(app+" is gone", l.Gone(app))
		for _, id := range all {
			for _, v := range []string{"pages", "disk"} {
				l.CLI("delete", "volume", string(id.Volume(v)), "--yes")
			}
		}
		lab.Within(t, time.Minute, "nothing is left", func() error {
			held := l.Held(n1)
			disks, _ := filepath.Glob(filepath.Join(local, "*", "disk.img"))
			if m := mounts(); len(m)+len(disks)+held["task"]+held["container"]+len(storage.Volumes()) > 0 || held["snapshot"] != 1 { // that of the image
				return fmt.Errorf("mounts %v, disks %v, objects of containerd %v, volumes of the driver %v", m, disks, held, storage.Volumes())
			}
			return nil
		})
	}

	l.Apply(lab.App("calm", db))
	took := lab.Stopwatch()
	check(t, "calm", nil)
	start := took()
	remove(t, "calm")

	kill := map[string]func(){
		"containerd": func() { l.Containerd().Kill9(); l.Containerd().Start() },
		"engine":     func() { n1.Kill9(); n1.Start() },
		"cluster":    func() { c.Restart() },
		"engine_and_containerd": func() {
			n1.Kill9()
			l.Containerd().Kill9()
			n1.Start()
			l.Containerd().Start()
		},
	}
	for round, victim := range []string{
		"containerd", "engine", "cluster", "containerd", "engine_and_containerd",
	} {
		app := fmt.Sprintf("app%d", round)
		sub(t, l, fmt.Sprintf("%d_%s", round, victim), func(t *testing.T) {
			later := start * time.Duration(2*round+1) / 10 // the moments of the two kills
			l.Apply(lab.App(app, db))
			time.Sleep(later)
			kill[victim]()
			check(t, app, nil)
			were := map[api.InstanceID]int{}
			for _, id := range ids(app) {
				were[id] = lines(id) + 1
				l.Workload(id).Kill9()
			}
			time.Sleep(start - later)
			kill[victim]()
			check(t, app, were)
			remove(t, app)
		})
	}
}
