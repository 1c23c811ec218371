package lab_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/csidriver"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestContainerdIsKilledDuringCalls kills containerd, in part together with the engine, while a CSI driver
// attaches, stages, publishes, snapshots and unmounts a volume, and in the middle of roll-outs. Afterwards the
// newest version runs once, each of its mounts exists once, what was synced before is there, and nothing is
// left of it when it is deleted. The service that is rolled out has a volume of a driver without a controller,
// which the cluster does not know.
func TestContainerdIsKilledDuringCalls(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	const driver, nodeOnly = "dirs.test.example", "ids.test.example"
	servers, args := map[string]*csidriver.Server{}, map[string][]string{}
	open := func(o csidriver.Options) *csidriver.Storage {
		o.Dir = filepath.Join(l.Dir, o.Name)
		if err := os.Mkdir(o.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return csidriver.NewStorage(o)
	}
	serve := func(at string, s *csidriver.Storage, driver string) {
		socket := filepath.Join(l.Dir, fmt.Sprintf("%s-%d.csi", at, len(args[at])))
		d, err := csidriver.Serve(socket, s, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		if !s.NodeOnly() {
			servers[at] = d
		}
		args[at] = append(args[at], "--csi", driver+"="+socket) // calls may take longer than a kill
	}
	storage := open(csidriver.Options{Name: driver})
	serve("munich", storage, driver)
	serve("n1", storage, driver)
	ids := open(csidriver.Options{Name: nodeOnly, NodeOnly: true})
	serve("n1", ids, nodeOnly)
	o := steady()
	o.Args = append(o.Args, args["munich"]...)
	c := l.Cluster("munich", o)
	host := containers(t)
	host.Args = append(args["n1"], "--csi-ephemeral", nodeOnly)
	n1 := c.Node("n1", host)
	t.Cleanup(func() { storage.Forget("n1"); ids.Forget("n1") })
	l.Wait("the node takes work", lab.Nodes("munich", 1))

	version := 0
	update := func(app string, service api.Microservice) error {
		version++
		service.Environment = []string{fmt.Sprintf("VERSION=%d", version)}
		return l.TryApply(lab.Encode(lab.App(app, service)))
	}
	db := l.Container("db", 1)
	db.Cmd = []string{"/app", "journal", "/data/pages"}
	db.Volumes = []api.Volume{{Name: "pages", Driver: driver, MountPath: "/data", SizeMB: 16}}
	web, healthy := l.Container("web", 1), 1
	web.Update = &api.Update{MinHealthyTime: &healthy, Deadline: 60}
	web.Volumes = []api.Volume{{Name: "id", Type: api.VolumeCSIEphemeral, Driver: nodeOnly, MountPath: "/id", Config: map[string]string{"class": "fast"}}}
	journal := func() (text []byte) {
		for _, v := range storage.Volumes() {
			text, _ = os.ReadFile(filepath.Join(storage.Data(v), "pages"))
		}
		return text
	}
	mounts := func() []string {
		return append(lab.MountsUnder(filepath.Join(n1.Data, "csi")), lab.MountsUnder(filepath.Join(l.Dir, "c"))...)
	}
	// once waits until one process runs the newest version and nothing else is mounted than its root file system
	// and its volume. A call of containerd that gets no answer takes 15 seconds before it is repeated.
	once := func(t *testing.T, id api.ServiceID, volume int) {
		t.Helper()
		lab.Within(t, 2*time.Minute, "the newest version runs, with one mount of each thing", func() error {
			all := slices.DeleteFunc(l.Workloads(), func(w lab.Workload) bool { return w.Instance.Service() != id })
			for _, w := range all {
				env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", w.PID))
				if err != nil || !bytes.Contains(env, []byte("VERSION="+strconv.Itoa(version)+"\x00")) {
					return fmt.Errorf("%+v runs another version than %d (%v)", w, version, err)
				}
			}
			if len(all) != 1 {
				return fmt.Errorf("its processes are %+v, want one", all)
			}
			m := mounts()
			slices.Sort(m)
			if len(m) != 1+volume || len(slices.Compact(slices.Clone(m))) != len(m) {
				return fmt.Errorf("mounts: got %v, want %d, none twice", m, 1+volume)
			}
			if shims := shimsOf(l, n1); shims != 1 {
				return fmt.Errorf("%d shims, want one", shims)
			}
			return nil
		})
		if bad := append(storage.Violations(), ids.Violations()...); len(bad) > 0 {
			t.Errorf("violations of the driver's contract: %v", bad)
		}
	}
	nothing := func(t *testing.T, app string) {
		t.Helper()
		l.Wait(app+" is gone", l.Gone(app))
		lab.Within(t, time.Minute, "nothing is left", func() (err error) {
			held := l.Held(n1)
			dirs, _ := filepath.Glob(filepath.Join(n1.Data, "csi", "*"))
			bundles, _ := filepath.Glob(filepath.Join(l.Dir, "c", "*", "io.containerd.runtime.v2.task", "*", "*"))
			if m, s := mounts(), shimsOf(l, n1); len(ids.Volumes())+len(m)+len(dirs)+len(bundles)+s+held["task"]+held["container"] > 0 || held["snapshot"] > 1 { // that of the image
				err = fmt.Errorf("mounts %v, directories %v, bundles %v, %d shims, objects of containerd %v", m, dirs, bundles, s, held)
			}
			return err
		})
	}
	id := l.ID("shop", "db", 0)
	containerd := func() { l.Containerd().Kill9(); l.Containerd().Start() }
	both := func() {
		n1.Kill9()
		l.Containerd().Kill9()
		n1.Start()
		l.Containerd().Start()
	}
	newer := func() error { return update("shop", db) }
	runs := func(t *testing.T) {
		t.Helper()
		l.Wait("db runs", l.Running("shop", "db", 1))
		once(t, id.Service(), 2) // staged and published
	}
	for _, moment := range []struct {
		name, at, method string
		kill             func()
		begin            func() error // what makes the call
		then             func(t *testing.T)
	}{
		{"stage", "n1", "NodeStageVolume", containerd, newer, runs},
		{"roll-out publishes", "n1", "NodePublishVolume", containerd, newer, runs},
		{"roll-out publishes, engine too", "n1", "NodePublishVolume", both, newer, runs},
		{"roll-out unpublishes", "n1", "NodeUnpublishVolume", containerd, newer, runs},
		{"roll-out stages, engine too", "n1", "NodeStageVolume", both, newer, runs},
		{"roll-out attaches", "munich", "ControllerPublishVolume", containerd, newer, runs},
		{"snapshot", "munich", "CreateSnapshot", containerd, func() error {
			out, err := l.TryCLI("snapshot", "volume", string(id.Volume("pages")), "--name", "s")
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		}, func(t *testing.T) {
			runs(t)
			for _, s := range storage.Snapshots() {
				if text, err := os.ReadFile(filepath.Join(storage.Data(s), "pages")); err != nil || !bytes.Equal(text, journal()) {
					t.Errorf("snapshot: got %q (%v), want %q", text, err, journal())
				}
			}
			l.CLI("delete", "snapshot", string(id.Volume("pages").Snapshot("s")), "--yes")
		}},
		{"unstage", "n1", "NodeUnstageVolume", containerd, func() error {
			_, err := l.API.DeleteApp(l.Context(), l.Tenant.App("shop", lab.Namespace), 0)
			return err
		}, func(t *testing.T) { nothing(t, "shop") }},
	} {
		sub(t, l, moment.name, func(t *testing.T) {
			was, server := journal(), servers[moment.at]
			server.Set(moment.method, csidriver.Fault{Hang: true, Late: true})
			done := make(chan error, 1)
			go func() { done <- moment.begin() }()
			lab.Within(t, time.Minute, moment.method+" is carried out and hangs", func() error {
				if server.Hanging(moment.method) == 0 {
					return errors.New("it does not")
				}
				return nil
			})
			moment.kill()
			server.Set(moment.method, csidriver.Fault{})
			if err := <-done; err != nil {
				t.Error(err)
			}
			moment.then(t)
			lab.Within(t, time.Minute, "the journal goes on", func() error { // the first process may not have written yet
				if is := journal(); len(is) == 0 || !bytes.HasPrefix(is, was) {
					return fmt.Errorf("journal: got %q, want a continuation of %q", is, was)
				}
				return nil
			})
		})
	}
	l.CLI("delete", "volume", string(id.Volume("pages")), "--yes")
	if v := storage.Volumes(); len(v) > 0 {
		t.Errorf("volumes of the driver after the deletion: %v", v)
	}

	sub(t, l, "roll-out, make before break", func(t *testing.T) {
		id := l.ServiceID("site", "web")
		if err := update("site", web); err != nil {
			t.Fatal(err)
		}
		l.Wait("web runs", l.Running("site", "web", 1))
		once(t, id, 1)
		for _, v := range ids.Volumes() {
			if text, err := os.ReadFile(filepath.Join(ids.Data(v), "class")); err != nil || string(text) != "fast" {
				t.Errorf("config of the volume at its driver: got %q, %v", text, err)
			}
		}
		if err := update("site", web); err != nil {
			t.Fatal(err)
		}
		l.Wait("an additional instance exists", func(v lab.View) bool { return len(v.Of(id)) > 1 })
		containerd()
		lab.Within(t, 60*time.Second, "the roll-out is over", func() error {
			if len(l.Workloads()) == 0 {
				t.Error("no instance runs during the roll-out")
			}
			r, err := l.API.RollOut(t.Context(), id)
			if err == nil && !r.Over() {
				err = fmt.Errorf("%s", r.Standing())
			}
			if err == nil && (r.State != api.RollOutHealthy || r.Failed != 0) {
				t.Errorf("the roll-out is %s", r.Standing())
			}
			return err
		})
		l.Wait("one is left", l.Running("site", "web", 1))
		once(t, id, 1)
		l.Delete("site")
		nothing(t, "site")
	})
}

// shimsOf returns the number of processes that containerd has for the containers of a node.
func shimsOf(l *lab.Lab, n *lab.Node) (count int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		text, _ := os.ReadFile(path)
		if bytes.Contains(text, []byte("containerd-shim")) && bytes.Contains(text, []byte("\x00"+filepath.Base(l.Dir)+"-"+n.Name+"\x00")) {
			count++
		}
	}
	return count
}
