package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	goruntime "runtime"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Artifact fetches the image of a workload, from where containers get theirs, and does not unpack it. It
// also accepts images whose operating system is "qemu", which tools for unikernels build.
func (r *Runtime) Artifact(ctx context.Context, w runtime.Workload) (runtime.Artifact, error) {
	a, err := r.artifact(ctx, w)
	if err != nil {
		return a, failure("fetch the image of", w.Key, err)
	}
	return a, nil
}

func (r *Runtime) artifact(ctx context.Context, w runtime.Workload) (a runtime.Artifact, err error) {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, r.cfg.Namespace), pullTimeout)
	defer cancel()
	machine := platforms.DefaultSpec()
	platform := platforms.MatchComparer(platforms.Ordered(machine, ocispec.Platform{OS: "qemu", Architecture: machine.Architecture}))
	if w.Spec.Platform != "" {
		p, err := platforms.Parse(w.Spec.Platform)
		if err != nil {
			return a, runtime.Errorf(api.ReasonImageBad, "platform %q: %w", w.Spec.Platform, err)
		}
		platform = platforms.OnlyStrict(p)
	}
	img, err := r.findImage(ctx, w.Spec.Code, platform, accountOf(w), false)
	if err != nil {
		return a, err
	}
	if err := r.markUsed(ctx, img.Metadata()); err != nil {
		return a, err
	}
	blobs := r.c.ContentStore()
	manifest, err := images.Manifest(ctx, blobs, img.Target(), platform)
	if err != nil {
		if errdefs.IsNotFound(err) {
			err = runtime.Errorf(api.ReasonImageBad, "image %q is incomplete or not for %s: %w", w.Spec.Code, goruntime.GOARCH, err)
		}
		return a, err
	}
	var config ocispec.Image
	if text, err := content.ReadBlob(ctx, blobs, manifest.Config); err != nil {
		return a, err
	} else if err := json.Unmarshal(text, &config); err != nil {
		return a, runtime.Errorf(api.ReasonImageBad, "configuration of image %q: %w", w.Spec.Code, err)
	}
	return runtime.Artifact{
		Digest: manifest.Config.Digest.String(), Env: config.Config.Env,
		Args: slices.Concat(config.Config.Entrypoint, config.Config.Cmd),
		Layers: func(ctx context.Context, read func(io.Reader) error) error {
			ctx = namespaces.WithNamespace(ctx, r.cfg.Namespace)
			for _, l := range manifest.Layers {
				if err := readLayer(ctx, blobs, l, read); err != nil {
					return err
				}
			}
			return nil
		},
	}, nil
}

func readLayer(ctx context.Context, blobs content.Provider, layer ocispec.Descriptor, read func(io.Reader) error) error {
	blob, err := blobs.ReaderAt(ctx, layer)
	if err != nil {
		return err
	}
	defer blob.Close()
	plain, err := compression.DecompressStream(io.NewSectionReader(blob, 0, blob.Size()))
	if err != nil {
		return fmt.Errorf("decompress layer %s: %w", layer.Digest, err)
	}
	defer plain.Close()
	return read(plain)
}
