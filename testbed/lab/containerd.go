package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

// Image is the reference of testbed/workload's image, which the nodes of a lab have.
const Image = "treeline.local/workload:1"

// Containerd is a containerd of the lab's own.
type Containerd struct {
	*Proc
	Address string
	Images  string // directory of OCI archives
}

// Containerd is the lab's, started when it is first asked for.
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
	if err := os.MkdirAll(c.Images, 0o755); err != nil { //nolint:gosec // images are no secret
		l.t.Fatalf("%v", err)
	}
	if err := image.WriteFile(filepath.Join(c.Images, "workload.tar"), image.Image{Ref: Image, Binary: l.Program}); err != nil {
		l.t.Fatalf("%v", err)
	}
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

// Start starts containerd, again if it was ended, and waits until it listens.
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
		time.Sleep(10 * time.Millisecond) // without systemd it tells nobody when it listens
	}
	t.Fatalf("containerd does not listen on %s\n%s", c.Address, tail(c.log, 20))
}

// Tasks are the ids of the containers that containerd has for the node, running
// or not.
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
