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

// TestVolumesMove drains the node of an instance that writes to its volume all the time. It starts on the other node with
// every byte that it synced, also if an engine is killed during the copy.
func TestVolumesMove(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	c := l.Cluster("munich", lab.ClusterOptions{})
	nodes := map[string]*lab.Node{"n1": c.Node("n1", containers(t)), "n2": c.Node("n2", containers(t))}
	l.Wait("both nodes take work", lab.Nodes("munich", 2))
	db := l.Container("db", 1)
	db.Cmd, db.Move = []string{"/app", "writer", "/data"}, api.MoveVolume
	db.Volumes = []api.Volume{{Name: "pages", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 64}}
	l.Apply(lab.App("shop", db))
	l.Wait("db runs", l.Running("shop", "db", 1))
	id := l.ID("shop", "db", 0)
	images := func(n *lab.Node) []string {
		found, _ := filepath.Glob(filepath.Join(n.Data, "volumes", "*", "disk.img"))
		return found
	}
	file := func(n *lab.Node, name string) ([]byte, error) {
		found, err := filepath.Glob(filepath.Join(n.Data, "volumes", "*", "mnt", "data", name))
		if err != nil || len(found) != 1 {
			return nil, fmt.Errorf("files %s of node %s: got %v, %v, want one", name, n.Name, found, err)
		}
		return os.ReadFile(found[0])
	}
	// drain moves db off its node. It calls during when the target has a part of the volume.
	moved := 0
	byRequest := false
	drain := func(t *testing.T, during func(from, to *lab.Node)) {
		t.Helper()
		from := nodes[l.Workload(id).Node]
		to := nodes[map[string]string{"n1": "n2", "n2": "n1"}[from.Name]]
		lab.Within(t, time.Minute, "db writes", func() error {
			text, err := file(from, "log")
			if lines := strings.Split(string(text), "end\n"); err != nil || len(lines) != moved+1 || strings.Count(lines[moved], "\n") < 20 {
				return fmt.Errorf("%d bytes, %v", len(text), err)
			}
			return nil
		})
		if byRequest {
			l.CLI("move", "instance", "shop/db#0", "--to", "munich/"+to.Name, "--detach")
		} else if err := c.API.OwnNodes().Drain(t.Context(), api.NodeID(from.Name)); err != nil {
			t.Fatal(err)
		}
		lab.Within(t, time.Minute, "the target has a part of the volume", func() error {
			_, err := file(to, "bulk")
			return err
		})
		during(from, to)
		l.Wait("db runs on "+to.Name, lab.Is(id, func(i api.Instance) bool {
			return i.State == api.Running && strings.Contains(i.Detail, "moved with its volumes: not available for ")
		}))
		if now := l.Workload(id).Node; now != to.Name {
			t.Fatalf("db runs on %s, want %s", now, to.Name)
		}
		moved++
		lab.Within(t, time.Minute, "the copy on the drained node is deleted", func() error {
			if left := images(from); len(left) > 0 {
				return fmt.Errorf("left: %v", left)
			}
			return nil
		})
		if all := images(to); len(all) != 1 {
			t.Errorf("volumes of %s: got %v, want one", to.Name, all)
		}
		text, err := file(to, "log")
		if err != nil {
			t.Fatal(err)
		}
		n, ends := 0, 0
		for line := range strings.Lines(string(text)) {
			switch n++; line {
			case "end\n":
				ends++
			case fmt.Sprintln(n):
			default:
				if n <= strings.Count(string(text), "\n") { // the last line may be half written
					t.Fatalf("line %d of the log is %q", n, line)
				}
			}
		}
		if ends != moved {
			t.Errorf("the log has %d ends, want one of each placement that was stopped, %d", ends, moved)
		}
		if b, err := file(to, "bulk"); err != nil || len(b) != 24<<20 {
			t.Errorf("bulk has %d bytes, %v", len(b), err)
		}
		if err := c.API.OwnNodes().Uncordon(t.Context(), api.NodeID(from.Name)); err != nil {
			t.Fatal(err)
		}
		l.Wait("both nodes take work", lab.Nodes("munich", 2))
	}

	sub(t, l, "drain", func(t *testing.T) {
		drain(t, func(_, _ *lab.Node) {})
		if out := l.CLI("describe", "instance", "shop/db#0"); !strings.Contains(out, "not available for") {
			t.Errorf("describe does not have the figures of the move:\n%s", out)
		}
	})
	sub(t, l, "the engine of the source is killed", func(t *testing.T) {
		drain(t, func(from, _ *lab.Node) { from.Kill9(); from.Start() })
	})
	sub(t, l, "the engine of the target is killed", func(t *testing.T) {
		drain(t, func(_, to *lab.Node) { to.Kill9(); to.Start() })
	})
	sub(t, l, "a requested move, and the cluster is killed", func(t *testing.T) {
		byRequest = true
		drain(t, func(_, _ *lab.Node) { c.Restart() })
		byRequest = false
		if out := l.CLI("events", "shop/db#0"); !strings.Contains(out, "move to another node by") || !strings.Contains(out, string(api.ReasonMoved)) {
			t.Errorf("events do not say who moved it:\n%s", out)
		}
	})
	sub(t, l, "the cluster is killed", func(t *testing.T) {
		drain(t, func(_, _ *lab.Node) { c.Restart() })
	})
	l.Delete("shop")
	l.Wait("db is gone", l.Gone("shop"))
	for name, n := range nodes {
		if m := lab.MountsUnder(filepath.Join(n.Data, "volumes")); len(m) != 0 {
			t.Errorf("mounts of %s after the application was deleted: %v", name, m)
		}
	}
}
