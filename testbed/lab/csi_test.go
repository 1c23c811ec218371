package lab_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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

// TestCSIVolumes gives services volumes of a driver on two nodes. The driver hangs, daemons are killed in the
// middle of its calls, and a node is cut off: a volume is never mounted on two nodes, nothing is left behind,
// and what was written is there.
func TestCSIVolumes(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	const driver, password = "dirs.test.example", "correct-horse-battery"
	secret := filepath.Join(l.Dir, "secrets.yaml")
	if err := os.WriteFile(secret, []byte("all: {password: "+password+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	volumes := filepath.Join(l.Dir, "dirs")
	if err := os.Mkdir(volumes, 0o755); err != nil {
		t.Fatal(err)
	}
	storage := csidriver.NewStorage(csidriver.Options{Name: driver, Dir: volumes, Uploads: 1})
	must := map[string]map[string]string{}
	for _, m := range []string{"CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "ControllerExpandVolume", "CreateSnapshot", "DeleteSnapshot", "NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"} {
		must[m] = map[string]string{"password": password}
	}
	storage.Require(must)
	serve := func(name string) (*csidriver.Server, []string) {
		socket := filepath.Join(l.Dir, name+".csi")
		s, err := csidriver.Serve(socket, storage, name, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s, []string{"--csi", driver + "=" + socket, "--csi-timeout", "2s", "--csi-secrets", driver + "=" + secret}
	}
	controller, args := serve("controller")
	c := l.Cluster("munich", lab.ClusterOptions{Args: append(slices.Clone(args), "--csi-detach-after", "10s")})
	nodes, servers := map[string]*lab.Node{}, map[string]*csidriver.Server{}
	for _, name := range []string{"n1", "n2"} {
		o := containers(t)
		servers[name], o.Args = serve(name)
		nodes[name] = c.Node(name, o)
		t.Cleanup(func() { storage.Forget(name) })
	}
	l.Wait("both nodes take work", lab.Nodes("munich", 2))

	db := l.Container("db", 1)
	db.Cmd = []string{"/app", "journal", "/data/pages"}
	db.Volumes = []api.Volume{{Name: "pages", Driver: driver, MountPath: "/data", SizeMB: 16}}
	l.Apply(lab.App("shop", db))
	l.Wait("db runs", l.Running("shop", "db", 1))
	id := l.ID("shop", "db", 0)
	starts := 1
	mountsOf := func(name string) []string { return lab.MountsUnder(filepath.Join(nodes[name].Data, "csi")) }
	// check compares the number of lines in the journal with the number of starts, and the mounts on the
	// nodes that have no other volumes.
	check := func(t *testing.T, more ...string) (home string) {
		t.Helper()
		home = l.Workload(id).Node
		lab.Within(t, time.Minute, "each start has its line in the journal, and only its node has mounts", func() error {
			var text []byte
			for _, v := range storage.Volumes() {
				b, _ := os.ReadFile(filepath.Join(storage.Data(v), "pages"))
				if strings.Contains(string(b), string(id)+" ") {
					text = b
				}
			}
			if n := strings.Count(string(text), string(id)+" "); n != starts {
				return fmt.Errorf("%d lines, want %d:\n%s", n, starts, text)
			}
			for name := range nodes {
				want := 0
				if name == home {
					want = 2
				}
				if m := mountsOf(name); len(m) != want && !slices.Contains(more, name) {
					return fmt.Errorf("mounts on %s: %v, want %d", name, m, want)
				}
			}
			return nil
		})
		if bad := storage.Violations(); len(bad) > 0 {
			t.Errorf("violations: %v", bad)
		}
		return home
	}
	check(t)

	sub(t, l, "engine and workload are killed", func(t *testing.T) {
		w, was := l.Workload(id), l.Instance(id)
		gone := w.Gone(l)
		nodes[w.Node].Kill9()
		w.Kill9()
		l.WaitGone("db", gone)
		nodes[w.Node].Start()
		l.Wait("db runs again", lab.Is(id, func(i api.Instance) bool { return i.Restarts > was.Restarts && i.State == api.Running }))
		starts++
		check(t)
	})

	sub(t, l, "the volume grows", func(t *testing.T) {
		was := l.Instance(id)
		db.Volumes[0].SizeMB = 24
		l.Apply(lab.App("shop", db))
		l.Wait("db runs with the new SLA", lab.Is(id, func(i api.Instance) bool { return i.Epoch > was.Epoch && i.State == api.Running }))
		starts++
		check(t)
		if got := storage.Capacity(storage.Volumes()[0]); got != 24<<20 {
			t.Errorf("size of the volume: got %d bytes, want 24 MiB", got)
		}
	})

	sub(t, l, "the node is cut off", func(t *testing.T) {
		old, was := l.Workload(id).Node, l.Instance(id)
		nodes[old].Link.Cut()
		l.Wait("db runs on the other node", lab.Is(id, func(i api.Instance) bool {
			return i.State == api.Running && i.Reason != api.ReasonNodeLost && i.Epoch > was.Epoch
		}))
		starts++
		if home := check(t); home == old {
			t.Errorf("db runs on %s, which is cut off", old)
		}
		nodes[old].Link.Heal()
		l.Wait("both nodes take work", lab.Nodes("munich", 2))
		check(t)
	})

	sub(t, l, "instances share a volume", func(t *testing.T) {
		share := l.Container("share", 3)
		share.Cmd = []string{"/app", "journal", "/data/pages"}
		share.Volumes = []api.Volume{{Name: "pages", Driver: driver, MountPath: "/data", SizeMB: 16, Access: api.AccessManyWriters}}
		l.Apply(lab.App("joint", share))
		l.Wait("all instances run", l.Running("joint", "share", 3))
		volume := l.ID("joint", "share", 0).Service().Volume("pages")
		all := storage.Volumes()
		if len(all) != 2 {
			t.Fatalf("volumes: got %v, want that of db and the shared one", all)
		}
		handle := all[1]
		published := map[string]int{} // by node, with the stage
		for n := range 3 {
			published[l.Workload(l.ID("joint", "share", n)).Node]++
		}
		for name := range published {
			published[name]++
		}
		lab.Within(t, time.Minute, "all instances write to the shared volume, which is staged once on each node", func() error {
			text, _ := os.ReadFile(filepath.Join(storage.Data(handle), "pages"))
			for n := range 3 {
				if !strings.Contains(string(text), string(l.ID("joint", "share", n))+" ") {
					return fmt.Errorf("instance %d has no line:\n%s", n, text)
				}
			}
			at := map[string]int{}
			for _, name := range storage.Mounts(handle) {
				at[name]++
			}
			if !maps.Equal(at, published) {
				return fmt.Errorf("mounts by node: got %v, want %v", at, published)
			}
			return nil
		})
		if out, err := l.TryCLI("delete", "volume", string(volume), "--yes"); err == nil {
			t.Errorf("a volume in use is deleted:\n%s", out)
		}
		l.Delete("joint")
		l.Wait("the instances are gone", l.Gone("joint"))
		lab.Within(t, time.Minute, "the shared volume is detached", func() error {
			if at := storage.Attached(handle); at != "" {
				return errors.New(at)
			}
			return nil
		})
		l.CLI("delete", "volume", string(volume), "--yes")
		check(t)
	})

	web := l.Container("web", 1)
	web.Volumes = []api.Volume{{Name: "cache", Driver: driver, MountPath: "/cache", SizeMB: 16}}
	for _, k := range []struct {
		method string
		at     *csidriver.Server // nil: the nodes'
	}{{"ControllerPublishVolume", controller}, {"NodeStageVolume", nil}, {"NodePublishVolume", nil}} {
		sub(t, l, k.method+" hangs", func(t *testing.T) {
			at := []*csidriver.Server{k.at}
			if k.at == nil {
				at = []*csidriver.Server{servers["n1"], servers["n2"]}
			}
			set := func(f csidriver.Fault) {
				for _, s := range at {
					s.Set(k.method, f)
				}
			}
			set(csidriver.Fault{Hang: true, Late: true})
			l.Apply(lab.App("site", web))
			site := l.ID("site", "web", 0)
			l.Wait("the error names the call", lab.Is(site, func(i api.Instance) bool {
				return i.Reason == api.ReasonVolumeDriver && strings.Contains(i.Detail, fmt.Sprintf("CSI driver %s has not answered %s for", driver, k.method))
			}))
			// It is tried again all the time; between two attempts why names the call.
			lab.Within(t, time.Minute, "why names what hangs", func() error {
				if out := l.CLI("why", "site/web#0"); !strings.Contains(out, k.method) {
					return errors.New(out)
				}
				return nil
			})
			check(t, "n1", "n2") // db is not affected
			for _, n := range nodes {
				n.Kill9()
			}
			c.Kill9()
			set(csidriver.Fault{})
			c.Start()
			for _, n := range nodes {
				n.Start()
			}
			l.Wait("web runs", l.Running("site", "web", 1))
			l.Delete("site")
			l.Wait("web is gone", l.Gone("site"))
			l.CLI("delete", "volume", string(site.Volume("cache")), "--yes")
			l.Wait("db runs", l.Running("shop", "db", 1))
			check(t)
			if v := storage.Volumes(); len(v) != 1 {
				t.Errorf("volumes: got %v, want that of db", v)
			}
		})
	}

	sub(t, l, "the cluster is killed during a snapshot", func(t *testing.T) {
		controller.Set("CreateSnapshot", csidriver.Fault{Hang: true, Late: true})
		failed := make(chan error, 1)
		go func() {
			_, err := l.TryCLI("snapshot", "volume", "shop/db#0:pages", "--name", "monday")
			failed <- err
		}()
		lab.Within(t, time.Minute, "the driver has taken the snapshot", func() error {
			if n := len(storage.Snapshots()); n != 1 {
				return fmt.Errorf("it has %d", n)
			}
			return nil
		})
		c.Kill9()
		if err := <-failed; err == nil {
			t.Error("a snapshot of a cluster that was killed succeeds")
		}
		controller.Set("CreateSnapshot", csidriver.Fault{})
		c.Start()
		l.Wait("both nodes take work", lab.Nodes("munich", 2))
		l.CLI("snapshot", "volume", "shop/db#0:pages", "--name", "monday")
		if out := l.CLI("get", "snapshots"); !strings.Contains(out, "monday") || !strings.Contains(out, "yes") || len(storage.Snapshots()) != 1 {
			t.Errorf("snapshots: want one that is ready, and the driver has %v:\n%s", storage.Snapshots(), out)
		}
		twin := l.Container("twin", 1)
		twin.Volumes = []api.Volume{{Name: "pages", Driver: driver, MountPath: "/data", SizeMB: 24, Snapshot: id.Volume("pages").Snapshot("monday").Name()}}
		l.Apply(lab.App("copy", twin))
		l.Wait("twin runs", l.Running("copy", "twin", 1))
		copied := 0
		for _, v := range storage.Volumes() {
			if text, _ := os.ReadFile(filepath.Join(storage.Data(v), "pages")); strings.Count(string(text), string(id)+" ") == starts {
				copied++
			}
		}
		if copied != 2 {
			t.Errorf("%d volumes have the journal, want that of db and its copy", copied)
		}
		if out, err := l.TryCLI("delete", "snapshot", "shop/db#0:pages@monday", "--yes"); err == nil || !strings.Contains(out+err.Error(), "is created from it") {
			t.Errorf("delete a snapshot that an SLA names: got %v\n%s", err, out)
		}
		l.Delete("copy")
		l.Wait("twin is gone", l.Gone("copy"))
		l.CLI("delete", "volume", string(l.ID("copy", "twin", 0).Volume("pages")), "--yes")
		l.CLI("delete", "snapshot", "shop/db#0:pages@monday", "--yes")
		if left := storage.Snapshots(); len(left) > 0 {
			t.Errorf("the driver has %v after the deletion", left)
		}
		check(t)
	})

	sub(t, l, "deletion", func(t *testing.T) {
		if out, err := l.TryCLI("delete", "volume", "shop/db#0:pages", "--yes"); err == nil || !strings.Contains(out+err.Error(), "has it") {
			t.Errorf("delete a volume in use: got %v\n%s", err, out)
		}
		l.Delete("shop")
		l.Wait("db is gone", l.Gone("shop"))
		for name := range nodes {
			if m := mountsOf(name); len(m) > 0 {
				t.Errorf("mounts on %s after the application was deleted: %v", name, m)
			}
		}
		if out := l.CLI("get", "volumes"); !strings.Contains(out, "pages") || !strings.Contains(out, driver) {
			t.Errorf("volumes:\n%s", out)
		}
		l.CLI("delete", "volume", string(id.Volume("pages")), "--yes")
		if v := storage.Volumes(); len(v) > 0 {
			t.Errorf("volumes of the driver after the deletion: %v", v)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			left, _ := filepath.Glob(filepath.Join(l.Dir, "n?", "csi", "*"))
			if len(left) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("left on the nodes: %v", left)
			}
		}
	})
	err := filepath.WalkDir(l.Dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || path == secret {
			return nil // it may be gone meanwhile
		}
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(password)) {
			t.Errorf("%s contains a secret of the driver", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
