// Package image builds container images from static binaries without a container tool: one layer,
// written as an OCI image layout in a tar archive, for one or several platforms. The same binary
// always gives the same archive, so that a digest identifies the build. It does not push or sign.
//
//	bin, err := image.Compile(ctx, dir, "./testbed/workload", runtime.GOARCH)
//	err = image.WriteFile("hello.tar", image.Image{Ref: "treeline.local/hello:1", Binary: bin})
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	_ "crypto/sha256" // go-digest looks it up by name
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is the content of an archive.
type Image struct {
	Ref    string // the name that the archive gives the image, "treeline.local/hello:1"
	Binary string // path of a static executable; it becomes /app and the entrypoint
	Arch   string // GOARCH; empty means this machine's
	User   string // "uid:gid"; empty means 65532:65532, a user without rights
	Env    []string
	Cmd    []string // default arguments of the entrypoint
	Health []string // HEALTHCHECK CMD, every 5 s; empty: none

	// Files are further files by their paths, such as boot/vmlinuz. With them, an image needs no Binary.
	Files map[string][]byte

	// Executables are further static executables: paths in the image → paths of this machine.
	// With them, an image needs no Binary.
	Executables map[string]string

	// Dirs are directories that belong to User.
	Dirs []string

	// Entrypoint replaces Binary as the entrypoint.
	Entrypoint []string

	// Version is the org.opencontainers.image.version; empty: none.
	Version string

	// Compress compresses the layer with gzip.
	Compress bool

	// Programs are paths of dynamically linked programs of this machine, which are added to the root
	// directory with their libraries.
	Programs []string
}

const (
	entrypoint  = "/app"
	defaultUser = "65532:65532"
)

// epoch is the time of everything in an archive, so that two builds are equal.
var epoch = time.Unix(0, 0).UTC()

// Compile builds the Go program pkg, statically and reproducibly, into dir and
// returns the path of the executable.
func Compile(ctx context.Context, dir, pkg, arch string) (string, error) {
	out := filepath.Join(dir, "app")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s for linux/%s: %w\n%s", pkg, arch, err, msg)
	}
	return out, nil
}

// WriteFile writes the archive of an image to path. See [Write].
func WriteFile(path string, platforms ...Image) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	defer f.Close()
	if err := Write(f, platforms...); err != nil {
		return err
	}
	return f.Close()
}

// Write writes an image to w as a tar archive of an OCI image layout. Several platforms of one image
// have the same Ref.
func Write(w io.Writer, platforms ...Image) error {
	var blobs [][]byte
	var manifests []v1.Descriptor
	for _, img := range platforms {
		b, manifest, err := build(img)
		if err != nil {
			return fmt.Errorf("build image %s: %w", img.Ref, err)
		}
		blobs, manifests = append(blobs, b...), append(manifests, manifest)
	}
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: manifests}
	if len(manifests) > 1 {
		// The name belongs to an index of its own: tools would otherwise see several images of one name.
		b := mustJSON(index)
		entry := describe(v1.MediaTypeImageIndex, b)
		blobs, index.Manifests = append(blobs, b), []v1.Descriptor{entry}
	}
	index.Manifests[0].Annotations = map[string]string{v1.AnnotationRefName: platforms[0].Ref}
	tw := tar.NewWriter(w)
	files := []file{
		{name: "oci-layout", mode: 0o644, data: mustJSON(v1.ImageLayout{Version: v1.ImageLayoutVersion})},
		{name: "index.json", mode: 0o644, data: mustJSON(index)},
		{name: "blobs/", mode: 0o755},
		{name: "blobs/sha256/", mode: 0o755},
	}
	for _, b := range blobs {
		files = append(files, file{name: "blobs/sha256/" + digest.FromBytes(b).Encoded(), mode: 0o644, data: b})
	}
	if err := writeTar(tw, files); err != nil {
		return fmt.Errorf("write image %s: %w", platforms[0].Ref, err)
	}
	return nil
}

// build returns the blobs of img, which are layer, config and manifest, and describes the manifest.
func build(img Image) (blobs [][]byte, entry v1.Descriptor, err error) {
	contents := []file{{name: "etc/", mode: 0o755}, {name: "tmp/", mode: 0o1777}}
	var program []string
	if img.Binary != "" || len(img.Files)+len(img.Executables) == 0 {
		bin, err := os.ReadFile(img.Binary)
		if err != nil {
			return nil, v1.Descriptor{}, err
		}
		program = []string{entrypoint}
		contents = append(contents, file{name: entrypoint[1:], mode: 0o755, data: bin})
	}
	for _, name := range slices.Sorted(maps.Keys(img.Files)) {
		contents = append(contents, file{name: name, mode: 0o644, data: img.Files[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(img.Executables)) {
		bin, err := os.ReadFile(img.Executables[name])
		if err != nil {
			return nil, v1.Descriptor{}, err
		}
		contents = append(contents, file{name: name, mode: 0o755, data: bin})
	}
	if img.Arch == "" {
		img.Arch = runtime.GOARCH
	}
	if img.User == "" {
		img.User = defaultUser
	}
	if len(img.Dirs) > 0 {
		var uid, gid int
		if _, err := fmt.Sscanf(img.User, "%d:%d", &uid, &gid); err != nil {
			return nil, v1.Descriptor{}, fmt.Errorf("read user %q: %w", img.User, err)
		}
		for _, dir := range img.Dirs {
			contents = append(contents, file{name: dir + "/", mode: 0o700, uid: uid, gid: gid})
		}
	}
	if img.Entrypoint != nil {
		program = img.Entrypoint
	}
	more, err := programs(img.Programs)
	if err != nil {
		return nil, v1.Descriptor{}, err
	}
	var layer bytes.Buffer
	if err := writeTar(tar.NewWriter(&layer), append(contents, more...)); err != nil {
		return nil, v1.Descriptor{}, err
	}
	diffID, mediaType := digest.FromBytes(layer.Bytes()), v1.MediaTypeImageLayer
	if img.Compress {
		var smaller bytes.Buffer
		z := gzip.NewWriter(&smaller)
		_, err := z.Write(layer.Bytes())
		if err = errors.Join(err, z.Close()); err != nil {
			return nil, v1.Descriptor{}, err
		}
		layer, mediaType = smaller, v1.MediaTypeImageLayerGzip
	}
	var labels map[string]string
	if img.Version != "" {
		labels = map[string]string{v1.AnnotationVersion: img.Version}
	}
	platform := v1.Platform{Architecture: img.Arch, OS: "linux"}
	config := mustJSON(v1.Image{
		Created:  &epoch,
		Platform: platform,
		Config: v1.ImageConfig{
			User:       img.User,
			Env:        append([]string{"PATH=/"}, img.Env...),
			Entrypoint: program,
			Cmd:        img.Cmd,
			WorkingDir: "/",
			Labels:     labels,
		},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{diffID}},
	})
	if len(img.Health) > 0 {
		config = withHealthcheck(config, img.Health)
	}
	manifest := mustJSON(v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest,
		Config:    describe(v1.MediaTypeImageConfig, config),
		Layers:    []v1.Descriptor{describe(mediaType, layer.Bytes())},
	})
	entry = describe(v1.MediaTypeImageManifest, manifest)
	entry.Platform = &platform
	return [][]byte{layer.Bytes(), config, manifest}, entry, nil
}

// withHealthcheck adds a HEALTHCHECK to an image's configuration. The OCI format does not have it;
// builders write it as Docker does.
func withHealthcheck(config []byte, command []string) []byte {
	var all map[string]any
	if err := json.Unmarshal(config, &all); err != nil {
		panic(err) // it was just encoded
	}
	all["config"].(map[string]any)["Healthcheck"] = map[string]any{
		"Test": append([]string{"CMD"}, command...), "Interval": 5 * time.Second, "Timeout": 2 * time.Second, "Retries": 100,
	}
	return mustJSON(all)
}

func describe(mediaType string, b []byte) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
}

type file struct {
	name string // a directory ends with "/"
	mode int64
	data []byte

	uid, gid int
}

func writeTar(tw *tar.Writer, files []file) error {
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: epoch, Uid: f.uid, Gid: f.gid, Format: tar.FormatPAX}
		h.Typeflag = tar.TypeReg
		if f.name[len(f.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(f.data); err != nil {
			return err
		}
	}
	return tw.Close()
}

// mustJSON encodes a value of the image specification, which cannot fail.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
