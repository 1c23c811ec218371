package containerd

import (
	"context"
	"fmt"
	"strings"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/treeline-edge/treeline/api"
	"golang.org/x/sys/unix"
)

const (
	usedLabel    = "treeline.used"    // when an image was last asked for
	archiveLabel = "treeline.archive" // which archive an image came from

	// useGrain is how exact the time of last use is: a write per start would cost
	// more than it tells.
	useGrain = 10 * time.Minute
)

// image returns the image that `code` names, unpacked. However many ask for
// one reference, it is fetched once; they share the outcome.
func (r *Runtime) image(ctx context.Context, spec api.Microservice) (known, error) {
	platform := platforms.DefaultStrict()
	if spec.Platform != "" {
		p, err := platforms.Parse(spec.Platform)
		if err != nil {
			return known{}, because(api.ReasonImageBad, "platform %q: %w", spec.Platform, err)
		}
		platform = platforms.OnlyStrict(p)
	}
	result := r.fetching.DoChan(spec.Code+"\x00"+spec.Platform, func() (any, error) {
		// Not the caller's context: the others wait for it too.
		ctx, cancel := context.WithTimeout(r.ctx, r.cfg.PullTimeout)
		defer cancel()
		return r.fetch(ctx, spec.Code, spec.Platform, platform)
	})
	select {
	case res := <-result:
		if res.Err != nil {
			return known{}, res.Err
		}
		return res.Val.(known), nil
	case <-ctx.Done():
		return known{}, context.Cause(ctx)
	}
}

func (r *Runtime) fetch(ctx context.Context, code, platform string, p platforms.MatchComparer) (known, error) {
	img, err := r.find(ctx, code, p)
	if err != nil {
		return known{}, err
	}
	key := img.Target().Digest.String() + " " + platform
	k, ok := r.known.get(key)
	if ok {
		k.Image = img // it may have another name
	} else if k, err = r.unpack(ctx, img, key); err != nil {
		return known{}, err
	}
	return k, r.markUsed(ctx, img.Metadata())
}

// unpack makes the image ready to be run, and learns what it asks for.
func (r *Runtime) unpack(ctx context.Context, img client.Image, key string) (k known, err error) {
	done, err := img.IsUnpacked(ctx, r.cfg.Snapshotter)
	if err == nil && !done {
		err = img.Unpack(ctx, r.cfg.Snapshotter)
	}
	if errdefs.IsNotFound(err) {
		return k, because(api.ReasonImageBad, "image %q is not whole or not made for this machine: %w", img.Name(), err)
	}
	if err != nil {
		return k, fmt.Errorf("unpack image %q: %w", img.Name(), err)
	}
	if k, err = r.learn(ctx, img, key); err != nil {
		return k, err
	}
	r.known.put(k)
	return k, nil
}

// find looks in the archives, in the namespace and at the registry.
func (r *Runtime) find(ctx context.Context, code string, p platforms.MatchComparer) (client.Image, error) {
	if path, ok := strings.CutPrefix(code, archiveScheme); ok {
		a, err := r.archives.byPath(path)
		if err != nil {
			return nil, err
		}
		return r.load(ctx, a, p)
	}
	named, err := reference.ParseDockerRef(code)
	if err != nil {
		return nil, because(api.ReasonImageNotFound, "%q is no image reference: %w", code, err)
	}
	ref := named.String()
	if a, ok := r.archives.byRef(code, ref); ok {
		return r.load(ctx, a, p)
	}
	for _, name := range []string{code, ref} {
		img, err := r.c.ImageService().Get(ctx, name)
		if err == nil {
			return client.NewImageWithPlatform(r.c, img, p), nil
		}
		if !errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("look up image %q: %w", name, err)
		}
	}
	img, err := r.c.Pull(ctx, ref, client.WithPullUnpack, client.WithPlatformMatcher(p),
		client.WithPullSnapshotter(r.cfg.Snapshotter), client.WithResolver(r.cfg.resolver()))
	if err != nil {
		return nil, r.pullError(reference.Domain(named), ref, err)
	}
	return img, nil
}

// load imports an archive, unless this version of it is there.
func (r *Runtime) load(ctx context.Context, a archive, p platforms.MatchComparer) (client.Image, error) {
	name := "treeline.archive/" + a.id
	img, err := r.c.ImageService().Get(ctx, name)
	if err == nil {
		return client.NewImageWithPlatform(r.c, img, p), nil
	}
	if !errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("look up archive %s: %w", a.path, err)
	}
	f, err := a.open()
	if err != nil {
		return nil, because(api.ReasonImageNotFound, "open archive %s: %w", a.path, err)
	}
	defer f.Close()
	// The archive's own names are not taken over: an archive must not pass for
	// an image of a registry.
	found, err := r.c.Import(ctx, f, client.WithIndexName(name), client.WithImportPlatform(p),
		client.WithImageRefTranslator(func(string) string { return "" }),
		client.WithImageLabels(map[string]string{archiveLabel: a.id}))
	if err != nil {
		reason := api.ReasonImageBad
		switch {
		case isFull(err):
			reason = api.ReasonDiskFull
		case errdefs.IsUnavailable(err):
			reason = api.ReasonRuntimeDown
		}
		return nil, because(reason, "import archive %s: %w", a.path, err)
	}
	for _, i := range found {
		if i.Name == name {
			return client.NewImageWithPlatform(r.c, i, p), nil
		}
	}
	return nil, because(api.ReasonImageBad, "archive %s holds no image", a.path)
}

func (r *Runtime) markUsed(ctx context.Context, img images.Image) error {
	now := time.Now()
	if now.Sub(lastUse(img)) < useGrain {
		return nil
	}
	if img.Labels == nil {
		img.Labels = make(map[string]string)
	}
	img.Labels[usedLabel] = now.UTC().Format(time.RFC3339)
	_, err := r.c.ImageService().Update(ctx, img, "labels."+usedLabel)
	if err != nil {
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

// diskUsed is how full the disk below dir is, in percent.
func diskUsed(dir string) (int, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("measure disk of %s: %w", dir, err)
	}
	used := s.Blocks - s.Bfree
	return int(used * 100 / max(used+s.Bavail, 1)), nil
}

// collect removes images, longest unused first, while the disk is above its
// high-water mark. Those in use and those used a while ago stay.
func (r *Runtime) collect(ctx context.Context) error {
	dir := root(ctx, r.c, r.cfg)
	if full, err := r.diskUsed(dir); err != nil || full < r.cfg.HighWater {
		return err
	}
	all, err := r.c.ImageService().List(ctx)
	if err != nil {
		return fmt.Errorf("collect images: %w", err)
	}
	containers, err := r.c.ContainerService().List(ctx)
	if err != nil {
		return fmt.Errorf("collect images: %w", err)
	}
	inUse := make(map[string]bool)
	for _, c := range containers {
		inUse[c.Image] = true
	}
	for _, img := range unused(all, inUse, time.Now().Add(-r.cfg.UnusedFor)) {
		r.log.Info("image removed, the disk is filling up", "image", img.Name, "used", lastUse(img))
		if err := r.c.ImageService().Delete(ctx, img.Name, images.SynchronousDelete()); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("collect image %q: %w", img.Name, err)
		}
		if full, err := r.diskUsed(dir); err != nil || full < r.cfg.HighWater {
			return err
		}
	}
	return nil
}
