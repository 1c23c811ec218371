package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// maxKnown bounds what is remembered; beyond it all is forgotten and learnt anew.
const maxKnown = 256

// known is what every container of an image begins with. Reading it from the
// image costs a dozen exchanges with containerd and a mount, so it is done once:
// what a digest names does not change.
type known struct {
	client.Image
	key     string
	parent  string          // the snapshot of the image's files
	process json.RawMessage // specs.Process as the image asks for it
}

// asks makes the process of a specification what the image asks for.
func (k known) asks(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	s.Process = new(specs.Process) // a copy of its own: what comes later changes it
	return json.Unmarshal(k.process, s.Process)
}

// library remembers images by digest and platform.
type library struct {
	mu   sync.Mutex // guards have
	have map[string]known
}

func (l *library) get(key string) (known, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k, ok := l.have[key]
	return k, ok
}

func (l *library) put(k known) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.have == nil || len(l.have) >= maxKnown {
		l.have = map[string]known{}
	}
	l.have[k.key] = k
}

func (l *library) forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.have, key)
}

// learn reads an unpacked image. The names of users and groups are those of the
// image's own files.
func (r *Runtime) learn(ctx context.Context, img client.Image, key string) (k known, err error) {
	ctx, done, err := r.c.WithLease(ctx)
	if err != nil {
		return k, fmt.Errorf("read image %q: %w", img.Name(), err)
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }() // it ends by itself, if late
	diffs, err := img.RootFS(ctx)
	if err != nil {
		return k, fmt.Errorf("read image %q: %w", img.Name(), err)
	}
	k = known{Image: img, key: key, parent: identity.ChainID(diffs).String()}
	snapshots, view := r.c.SnapshotService(r.cfg.Snapshotter), "treeline-view-"+k.parent
	if _, err := snapshots.View(ctx, view, k.parent); err != nil && !errdefs.IsAlreadyExists(err) {
		return k, fmt.Errorf("look into image %q: %w", img.Name(), err)
	}
	defer func() { _ = snapshots.Remove(context.WithoutCancel(ctx), view) }() // unreferenced, it is collected all the same
	c := &containers.Container{ID: view, Snapshotter: r.cfg.Snapshotter, SnapshotKey: view}
	s, err := oci.GenerateSpec(ctx, r.c, c, oci.WithImageConfig(img))
	if err != nil {
		return k, fmt.Errorf("read what image %q asks for: %w", img.Name(), err)
	}
	k.process, err = json.Marshal(s.Process)
	return k, err
}
