package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// floor is the baseline of deploy: it creates and starts containers with containerd alone, with
// the same image, snapshotter and shim, and the specification that the node engine wrote for an
// instance, except for names.
type floor struct {
	c         *client.Client
	ctx       context.Context
	end       context.CancelFunc
	image     client.Image
	namespace string // the node's
	spec      []byte
	dir       string
}

// topics are the containerd events that end a stage.
var topics = map[string]string{
	"/snapshot/prepare":  "snapshot",
	"/containers/create": "container",
	"/tasks/create":      "task created",
	"/tasks/start":       "task started",
}

type happened struct {
	topic string
	at    time.Time
}

// newFloor returns the floor on a node, for containers such as those of the model.
func newFloor(l *lab.Lab, n *lab.Node, model api.Microservice) (*floor, error) {
	ctrd := l.Containerd()
	c, err := client.New(ctrd.Address)
	if err != nil {
		return nil, fmt.Errorf("dial containerd: %w", err)
	}
	f := &floor{c: c, namespace: filepath.Base(l.Dir) + "-" + n.Name, dir: filepath.Join(l.Dir, "floor")}
	f.ctx, f.end = context.WithCancel(namespaces.WithNamespace(l.Context(), "floor"))
	if err := os.MkdirAll(f.dir, 0o755); err != nil { //nolint:gosec // output of containers
		return nil, err
	}
	if err := f.fetch(filepath.Join(ctrd.Images, "workload.tar")); err != nil {
		return nil, err
	}
	return f, f.learn(l, model)
}

func (f *floor) close() {
	f.end()
	_ = f.c.Close()
}

// fetch imports the image in a namespace that the node engine does not use.
func (f *floor) fetch(archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	found, err := f.c.Import(f.ctx, file)
	if err != nil || len(found) == 0 {
		return fmt.Errorf("import %s: %d images, %w", archive, len(found), err)
	}
	f.image = client.NewImage(f.c, found[0])
	return f.image.Unpack(f.ctx, "overlayfs")
}

// learn reads the specification of a container that the node engine created.
func (f *floor) learn(l *lab.Lab, model api.Microservice) error {
	l.Apply(lab.App("model", model))
	l.Wait("the model runs", l.Running("model", model.Name, 1))
	defer l.Delete("model")
	theirs := namespaces.WithNamespace(f.ctx, f.namespace)
	all, err := f.c.Containers(theirs)
	if err != nil {
		return fmt.Errorf("list the node's containers: %w", err)
	}
	if len(all) != 1 {
		return fmt.Errorf("the node has %d containers, want 1", len(all))
	}
	spec, err := all[0].Spec(theirs)
	if err != nil {
		return fmt.Errorf("read the model's specification: %w", err)
	}
	kept := spec.Mounts[:0]
	for _, m := range spec.Mounts {
		if !strings.HasPrefix(m.Source, l.Dir) { // the model's names, which are removed with it
			kept = append(kept, m)
		}
	}
	spec.Mounts = kept
	for i := range spec.Linux.Namespaces {
		spec.Linux.Namespaces[i].Path = "" // of the model's network, which runc makes here
	}
	f.spec, err = json.Marshal(spec)
	return err
}

// events returns containerd's events for the node.
func (f *floor) events() (<-chan happened, error) {
	out := make(chan happened, 1024)
	envelopes, errs := f.c.Subscribe(f.ctx, "namespace=="+f.namespace)
	go func() {
		for {
			select {
			case e := <-envelopes:
				if topics[e.Topic] == "" {
					continue
				}
				select {
				case out <- happened{e.Topic, e.Timestamp}:
				default: // nobody reads between samples
				}
			case <-errs:
				return
			}
		}
	}()
	return out, nil
}

// once creates, starts and removes one container, if confined with the seccomp profile. It
// returns the times at which the calls returned, relative to the first call.
func (f *floor) once(i int, confined bool) (map[string]time.Duration, error) {
	id := fmt.Sprintf("floor-%d", i)
	var spec oci.Spec
	if err := json.Unmarshal(f.spec, &spec); err != nil {
		return nil, err
	}
	spec.Linux.CgroupsPath = filepath.Join(filepath.Dir(spec.Linux.CgroupsPath), id)
	for k, v := range spec.Annotations {
		if strings.HasSuffix(k, ".group") { // the first of its application gets a new shim
			spec.Annotations[k] = v[:len(v)-4] + fmt.Sprintf("%04d", i)
		}
	}
	if !confined {
		spec.Linux.Seccomp = nil
	}
	at := map[string]time.Duration{}
	began := time.Now()
	c, err := f.c.NewContainer(f.ctx, id,
		client.WithImage(f.image), client.WithSnapshotter("overlayfs"), client.WithNewSnapshot(id, f.image),
		client.WithRuntime("io.containerd.runc.v2", nil), client.WithSpec(&spec))
	if err != nil {
		return nil, fmt.Errorf("create a container: %w", err)
	}
	at["snapshot"] = time.Since(began)
	task, err := c.NewTask(f.ctx, cio.LogFile(filepath.Join(f.dir, id)))
	if err != nil {
		return nil, fmt.Errorf("create a task: %w", err)
	}
	at["task created"] = time.Since(began)
	if err := task.Start(f.ctx); err != nil {
		return nil, fmt.Errorf("start a task: %w", err)
	}
	at["task started"] = time.Since(began)
	if _, err := task.Delete(f.ctx, client.WithProcessKill); err != nil {
		return nil, fmt.Errorf("delete a task: %w", err)
	}
	return at, c.Delete(f.ctx, client.WithSnapshotCleanup)
}
