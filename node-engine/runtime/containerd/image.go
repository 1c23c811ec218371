package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"golang.org/x/sys/unix"
)

const (
	usedLabel    = "treeline.used"    // when an image was last used, RFC 3339
	archiveLabel = "treeline.archive" // id of the archive of an image

	// usedResolution is the resolution of the time of last use. It saves a write per start.
	usedResolution = 10 * time.Minute
)

// unpacked is an unpacked image. Reading it takes a dozen calls of containerd and a mount, so it is
// cached by its digest.
type unpacked struct {
	client.Image
	key     string          // digest and platform
	parent  string          // the snapshot of the image's files
	process json.RawMessage // the specs.Process that the image configures
	health  *api.Health     // its HEALTHCHECK, nil: none
}

// setProcess is an oci.SpecOpts that sets the process that the image configures.
func (u unpacked) setProcess(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	s.Process = new(specs.Process) // a copy, because later options change it
	return json.Unmarshal(u.process, s.Process)
}

// image returns the unpacked image of the workload's code. Concurrent calls for one reference with
// the same account share one fetch and its outcome.
func (r *Runtime) image(ctx context.Context, w runtime.Workload) (unpacked, error) {
	spec := w.Spec
	platform := platforms.DefaultStrict()
	if spec.Platform != "" {
		p, err := platforms.Parse(spec.Platform)
		if err != nil {
			return unpacked{}, runtime.Errorf(api.ReasonImageBad, "platform %q: %w", spec.Platform, err)
		}
		platform = platforms.OnlyStrict(p)
	}
	from := accountOf(w)
	result := r.pulls.DoChan(spec.Code+"\x00"+spec.Platform+"\x00"+from.key(), func() (any, error) {
		// The caller's context is not used, because other callers wait for the result too.
		ctx, cancel := context.WithTimeout(r.ctx, pullTimeout)
		defer cancel()
		return r.fetch(ctx, spec.Code, spec.Platform, platform, from)
	})
	select {
	case res := <-result:
		u, _ := res.Val.(unpacked)
		return u, res.Err
	case <-ctx.Done():
		return unpacked{}, context.Cause(ctx)
	}
}

func (r *Runtime) fetch(ctx context.Context, code, platform string, p platforms.MatchComparer, from account) (unpacked, error) {
	img, err := r.findImage(ctx, code, p, from, true)
	if err != nil {
		return unpacked{}, err
	}
	key := img.Target().Digest.String() + " " + platform
	u, ok := r.unpacked.get(key)
	if ok {
		u.Image = img // it may have another name
	} else if u, err = r.unpack(ctx, img, key); err != nil {
		return unpacked{}, err
	}
	return u, r.markUsed(ctx, img.Metadata())
}

func (r *Runtime) unpack(ctx context.Context, img client.Image, key string) (u unpacked, err error) {
	done, err := img.IsUnpacked(ctx, r.cfg.Snapshotter)
	if err == nil && !done {
		err = img.Unpack(ctx, r.cfg.Snapshotter)
	}
	if errdefs.IsNotFound(err) {
		return u, runtime.Errorf(api.ReasonImageBad, "image %q is incomplete or for another platform: %w", img.Name(), err)
	}
	if err != nil {
		return u, fmt.Errorf("unpack image %q: %w", img.Name(), err)
	}
	if u, err = r.readImage(ctx, img, key); err != nil {
		return u, fmt.Errorf("read image %q: %w", img.Name(), err)
	}
	r.unpacked.put(key, u)
	return u, nil
}

// readImage reads an unpacked image. Names of users and groups are resolved with its files.
func (r *Runtime) readImage(ctx context.Context, img client.Image, key string) (u unpacked, err error) {
	ctx, done, err := r.c.WithLease(ctx)
	if err != nil {
		return u, err
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }() // otherwise the lease expires
	diffs, err := img.RootFS(ctx)
	if err != nil {
		return u, err
	}
	u = unpacked{Image: img, key: key, parent: identity.ChainID(diffs).String()}
	if u.health, err = healthcheck(ctx, img); err != nil {
		return u, err
	}
	snapshots, view := r.c.SnapshotService(r.cfg.Snapshotter), "treeline-view-"+u.parent
	if _, err := snapshots.View(ctx, view, u.parent); err != nil && !errdefs.IsAlreadyExists(err) {
		return u, err
	}
	defer func() { _ = snapshots.Remove(context.WithoutCancel(ctx), view) }() // otherwise containerd collects it
	c := &containers.Container{ID: view, Snapshotter: r.cfg.Snapshotter, SnapshotKey: view}
	s, err := oci.GenerateSpec(ctx, r.c, c, oci.WithImageConfig(img))
	if err != nil {
		return u, err
	}
	u.process, err = json.Marshal(s.Process)
	return u, err
}

// findImage searches the archives, the namespace and the registry. With unpack, it unpacks what it fetches.
func (r *Runtime) findImage(ctx context.Context, code string, p platforms.MatchComparer, from account, unpack bool) (client.Image, error) {
	if path, ok := strings.CutPrefix(code, archiveScheme); ok {
		a, err := r.archives.byPath(path)
		if err != nil {
			return nil, err
		}
		return r.load(ctx, a, p)
	}
	named, err := reference.ParseDockerRef(code)
	if err != nil {
		return nil, runtime.Errorf(api.ReasonImageNotFound, "%q is no image reference: %w", code, err)
	}
	ref := named.String()
	if a, ok := r.archives.byRef(code, ref); ok {
		return r.load(ctx, a, p)
	}
	names := []string{code, ref}
	if from.prefix != "" {
		names = append([]string{from.prefix + ref}, names...)
	}
	for _, name := range names {
		if img, err := r.lookUp(ctx, name, p); img != nil || err != nil {
			return img, err
		}
	}
	options := []client.RemoteOpt{client.WithPlatformMatcher(p), client.WithResolver(r.cfg.resolver(from)), client.WithImageHandlerWrapper(boundMetadata)}
	if unpack {
		options = append(options, client.WithPullUnpack, client.WithPullSnapshotter(r.cfg.Snapshotter))
	}
	img, err := r.c.Pull(ctx, ref, options...)
	if err != nil {
		return nil, r.pullError(reference.Domain(named), ref, err)
	}
	return img, nil
}

// maxMetadata bounds the manifests and the configuration of an image, which are read into memory.
const maxMetadata = 4 << 20

// boundMetadata returns a handler that refuses larger metadata before it is fetched.
func boundMetadata(h images.Handler) images.Handler {
	check := func(d v1.Descriptor) error {
		if d.Size > maxMetadata {
			return fmt.Errorf("%s %s has %d bytes, at most %d", d.MediaType, d.Digest, d.Size, int64(maxMetadata))
		}
		return nil
	}
	return images.HandlerFunc(func(ctx context.Context, d v1.Descriptor) (children []v1.Descriptor, err error) {
		index, manifest := images.IsIndexType(d.MediaType), images.IsManifestType(d.MediaType)
		if index || manifest || images.IsConfigType(d.MediaType) {
			if err := check(d); err != nil {
				return nil, err
			}
		}
		if children, err = h.Handle(ctx, d); err == nil && manifest && len(children) > 0 {
			err = check(children[0]) // the configuration, whatever its type
		}
		return children, err
	})
}

// lookUp returns the image of a name in containerd's namespace, nil if there is none.
func (r *Runtime) lookUp(ctx context.Context, name string, p platforms.MatchComparer) (client.Image, error) {
	img, err := r.c.ImageService().Get(ctx, name)
	switch {
	case errdefs.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look up image %q: %w", name, err)
	}
	return client.NewImageWithPlatform(r.c, img, p), nil
}

// load imports an archive, unless this version of it is imported.
func (r *Runtime) load(ctx context.Context, a archive, p platforms.MatchComparer) (client.Image, error) {
	name := "treeline.archive/" + a.id
	if img, err := r.lookUp(ctx, name, p); img != nil || err != nil {
		return img, err
	}
	f, err := a.open()
	if err != nil {
		return nil, runtime.Errorf(api.ReasonImageNotFound, "open archive %s: %w", a.path, err)
	}
	defer f.Close()
	// The archive's own names are not used: an archive must not replace an image of a registry.
	found, err := r.c.Import(ctx, f, client.WithIndexName(name), client.WithImportPlatform(p),
		client.WithImageRefTranslator(func(string) string { return "" }),
		client.WithImageLabels(map[string]string{archiveLabel: a.id}))
	if err != nil {
		reason := api.ReasonImageBad
		switch {
		case runtime.IsDiskFull(err):
			reason = api.ReasonDiskFull
		case errdefs.IsUnavailable(err):
			reason = api.ReasonRuntimeDown
		}
		return nil, runtime.Errorf(reason, "import archive %s: %w", a.path, err)
	}
	for _, i := range found {
		if i.Name == name {
			return client.NewImageWithPlatform(r.c, i, p), nil
		}
	}
	return nil, runtime.Errorf(api.ReasonImageBad, "archive %s contains no image", a.path)
}

func (r *Runtime) markUsed(ctx context.Context, img images.Image) error {
	now := time.Now()
	if now.Sub(lastUse(img)) < usedResolution {
		return nil
	}
	if img.Labels == nil {
		img.Labels = make(map[string]string)
	}
	img.Labels[usedLabel] = now.UTC().Format(time.RFC3339)
	if _, err := r.c.ImageService().Update(ctx, img, "labels."+usedLabel); err != nil {
		return fmt.Errorf("mark image %q as used: %w", img.Name, err)
	}
	return nil
}

func lastUse(img images.Image) time.Time {
	t, err := time.Parse(time.RFC3339, img.Labels[usedLabel])
	if err != nil {
		return img.UpdatedAt
	}
	return t
}

// diskUsed returns how full the disk of dir is, in percent.
func diskUsed(dir string) (int, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("measure disk of %s: %w", dir, err)
	}
	used := s.Blocks - s.Bfree
	return int(used * 100 / max(used+s.Bavail, 1)), nil
}

// collect removes images that are unused for UnusedFor, the longest unused first, while the disk
// is fuller than HighWater.
func (r *Runtime) collect(ctx context.Context) error {
	dir := root(ctx, r.c, r.cfg)
	percent, err := r.diskUsed(dir)
	if err != nil || percent < r.cfg.HighWater {
		return err
	}
	all, err := r.c.ImageService().List(ctx)
	containers, err2 := r.c.ContainerService().List(ctx)
	if err := errors.Join(err, err2); err != nil {
		return fmt.Errorf("collect images: %w", err)
	}
	inUse := make(map[string]bool)
	for _, c := range containers {
		inUse[c.Image] = true
	}
	for _, img := range unused(all, inUse, time.Now().Add(-r.cfg.UnusedFor)) {
		r.log.Info("removing an unused image, because the disk is filling up", "image", img.Name, "used", lastUse(img))
		if err := ignoreNotFound(r.c.ImageService().Delete(ctx, img.Name, images.SynchronousDelete())); err != nil {
			return fmt.Errorf("collect image %q: %w", img.Name, err)
		}
		if percent, err = r.diskUsed(dir); err != nil || percent < r.cfg.HighWater {
			return err
		}
	}
	return nil
}

// unused returns the images that are not in use and were last used before a time, the longest
// unused first.
func unused(all []images.Image, inUse map[string]bool, before time.Time) []images.Image {
	out := slices.DeleteFunc(slices.Clone(all), func(i images.Image) bool {
		return inUse[i.Name] || lastUse(i).After(before)
	})
	slices.SortFunc(out, func(a, b images.Image) int { return lastUse(a).Compare(lastUse(b)) })
	return out
}
