package containerd

import (
	"context"
	"slices"
	"testing"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
)

// TestPurge checks that no container, image, content or snapshot is left in the namespace, and that
// another namespace is unchanged.
func TestPurge(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	cfg := testConfig(t, daemon, imageDir(t))
	r := openRuntime(t, cfg)
	if err := createAndStart(t.Context(), r, newWorkload(0, "sleep")); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ours, theirs := namespaces.WithNamespace(t.Context(), cfg.Namespace), namespaces.WithNamespace(t.Context(), "somebody")
	all, err := c.ImageService().List(ours)
	if err != nil || len(all) == 0 {
		t.Fatalf("images before the purge: got %d, %v, want some", len(all), err)
	}
	if _, err := c.ImageService().Create(theirs, images.Image{Name: "theirs", Target: all[0].Target}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // as after a crash
		if err := runtime.Purge(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	if all, err = c.ImageService().List(ours); err != nil {
		t.Fatal(err)
	}
	for _, img := range all {
		left = append(left, "image "+img.Name)
	}
	if err := c.ContentStore().Walk(ours, func(i content.Info) error {
		left = append(left, "content "+i.Digest.String())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.SnapshotService(cfg.Snapshotter).Walk(ours, func(_ context.Context, i snapshots.Info) error {
		left = append(left, "snapshot "+i.Name)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	containers, err := c.ContainerService().List(ours)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range containers {
		left = append(left, "container "+x.ID)
	}
	if len(left) > 0 {
		t.Errorf("left in the namespace: got %v, want nothing", left)
	}
	kept, err := c.ImageService().List(theirs)
	if err != nil || !slices.ContainsFunc(kept, func(i images.Image) bool { return i.Name == "theirs" }) {
		t.Errorf("images of another namespace: got %v, %v, want its image", kept, err)
	}
}
