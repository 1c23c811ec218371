package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

// Image is the reference of testbed/workload's image, which the nodes of a lab have.
const Image = "treeline.local/workload:1"

// HealthImage is an image of the same program with the HEALTHCHECK
// `/app check http://127.0.0.1:8080/healthz`.
const HealthImage = "treeline.local/checked:1"

// Containerd is a separate containerd of the lab.
type Containerd struct {
	*Proc
	Address string
	Images  string // directory of OCI archives
}

// Images writes the archives of the images to a directory.
func (l *Lab) Images(dir string) {
	l.t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // images are no secret
		l.t.Fatalf("%v", err)
	}
	if err := image.WriteFile(filepath.Join(dir, "workload.tar"), image.Image{Ref: Image, Binary: l.Program}); err != nil {
		l.t.Fatalf("%v", err)
	}
	if err := image.WriteFile(filepath.Join(dir, "checked.tar"), image.Image{
		Ref: HealthImage, Binary: l.Program, Health: []string{"/app", "check", "http://127.0.0.1:8080/healthz"},
	}); err != nil {
		l.t.Fatalf("%v", err)
	}
}

// Containerd returns the lab's containerd, which starts at the first call.
func (l *Lab) Containerd() *Containerd {
	l.t.Helper()
	if l.ctrd != nil {
		return l.ctrd
	}
	program, err := exec.LookPath("containerd")
	if err != nil {
		l.t.Fatalf("%v", err)
	}
	dir := filepath.Join(l.Dir, "c")
	c := &Containerd{Address: filepath.Join(dir, "c.sock"), Images: filepath.Join(dir, "images")}
	l.Images(c.Images)
	config := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = %q
[ttrpc]
  address = %q
`, dir+"/root", dir+"/state", c.Address, c.Address+".ttrpc")
	if err := os.WriteFile(dir+"/config.toml", []byte(config), 0o600); err != nil {
		l.t.Fatalf("%v", err)
	}
	c.Proc = l.proc("containerd", program, "--config", dir+"/config.toml")
	l.ctrd = c
	c.Start()
	return c
}

// Start starts containerd, also after it has ended, and waits until it listens.
func (c *Containerd) Start() {
	t := c.lab.t
	t.Helper()
	_ = os.Remove(c.Address)
	c.Launch()
	ctx, cancel := context.WithTimeout(c.lab.ctx, patience)
	defer cancel()
	for ctx.Err() == nil && c.Alive() {
		if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.Address); err == nil {
			_ = conn.Close()
			return
		}
		time.Sleep(10 * time.Millisecond) // without systemd there is no notification that it listens
	}
	t.Fatalf("containerd does not listen on %s\n%s", c.Address, tail(c.log, 20))
}

// Tasks returns the ids of the node's containers in containerd, running or not.
func (l *Lab) Tasks(n *Node) []string {
	l.t.Helper()
	entries, err := os.ReadDir(filepath.Join(l.Dir, "c", "state", "io.containerd.runtime.v2.task", filepath.Base(l.Dir)+"-"+n.Name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.t.Fatalf("%v", err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// Held returns the number of the node's objects in containerd by kind, without kinds that have
// none.
func (l *Lab) Held(n *Node) map[string]int {
	l.t.Helper()
	c, err := client.New(l.Containerd().Address)
	if err != nil {
		l.t.Fatalf("dial containerd: %v", err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(l.ctx, filepath.Base(l.Dir)+"-"+n.Name), patience)
	defer cancel()
	held := map[string]int{"task": len(l.Tasks(n))}
	containers, err := c.ContainerService().List(ctx)
	images, ierr := c.ImageService().List(ctx)
	leases, lerr := c.LeasesService().List(ctx)
	held["container"], held["image"], held["lease"] = len(containers), len(images), len(leases)
	serr := c.SnapshotService("overlayfs").Walk(ctx, func(context.Context, snapshots.Info) error { held["snapshot"]++; return nil })
	cerr := c.ContentStore().Walk(ctx, func(content.Info) error { held["content"]++; return nil })
	if err := errors.Join(err, ierr, lerr, serr, cerr); err != nil {
		l.t.Fatalf("list the objects of %s in containerd: %v", n.Name, err)
	}
	maps.DeleteFunc(held, func(_ string, n int) bool { return n == 0 })
	return held
}
