// Package artifact reads and writes packages of addons: as a directory of YAML files, as an OCI image layout in a tar
// archive, and in a registry. A package is one JSON document, which is the only layer of an OCI artifact, so that
// there is nothing to unpack. All that is read is bounded, and blobs are checked by their digests.
//
//	pkg, err := artifact.ReadDirectory("deploy/addons/mqtt")
//	a, err := artifact.New(pkg)
//	at, err := artifact.Registry{}.Push(ctx, "registry.example.org/addons/mqtt:1.0.0", a)
package artifact

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/addon"
	"github.com/treeline-edge/treeline/internal/yaml"
)

// The bounds of what is read.
const (
	maxFiles    = 128 // of a directory
	maxManifest = 64 << 10
	maxLayout   = 1 << 20 // bytes of a file
	maxEntries  = 32      // of its archive
)

// artifactType is the type of the manifest.
const artifactType = "application/vnd.treeline.addon.v1"

// Artifact is a package as an OCI artifact.
type Artifact struct {
	Package  api.AddonPackage
	Manifest []byte
	Layer    []byte // Package as JSON
}

// Digest is the digest of the manifest, which identifies the artifact.
func (a Artifact) Digest() digest.Digest { return digest.FromBytes(a.Manifest) }

// New makes an artifact of a package. The same package makes the same artifact.
func New(p api.AddonPackage) (Artifact, error) {
	if err := addon.Check(p); err != nil {
		return Artifact{}, err
	}
	layer, err := json.Marshal(p)
	if err != nil {
		return Artifact{}, err
	}
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifactType,
		Config:      ocispec.DescriptorEmptyJSON,
		Layers:      []ocispec.Descriptor{{MediaType: api.AddonMediaType, Digest: digest.FromBytes(layer), Size: int64(len(layer))}},
		Annotations: map[string]string{ocispec.AnnotationTitle: p.Name, ocispec.AnnotationVersion: p.Version},
	})
	return Artifact{Package: p, Manifest: manifest, Layer: layer}, err
}

// layerOf returns the descriptor of the package in a manifest.
func layerOf(manifest []byte) (ocispec.Descriptor, error) {
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("manifest: %w: %w", err, api.ErrInvalid)
	}
	if len(m.Layers) != 1 || m.Layers[0].MediaType != api.AddonMediaType {
		return ocispec.Descriptor{}, fmt.Errorf("the artifact is not an addon: want one layer of type %s: %w", api.AddonMediaType, api.ErrInvalid)
	}
	l := m.Layers[0]
	if l.Digest.Validate() != nil || l.Digest.Algorithm() != digest.SHA256 || l.Size < 2 || l.Size > api.MaxAddonBytes {
		return l, fmt.Errorf("layer %.100q of %d bytes: want a sha256 digest and at most %d bytes: %w", l.Digest, l.Size, api.MaxAddonBytes, api.ErrInvalid)
	}
	return l, nil
}

// parse makes an artifact of the blobs that were read.
func parse(manifest, layer []byte) (Artifact, error) {
	a := Artifact{Manifest: manifest, Layer: layer}
	d := json.NewDecoder(bytes.NewReader(layer))
	d.DisallowUnknownFields()
	if err := d.Decode(&a.Package); err != nil {
		return a, fmt.Errorf("package: %w: %w", err, api.ErrInvalid)
	}
	if err := addon.Check(a.Package); err != nil {
		return a, fmt.Errorf("package: %w", err)
	}
	return a, nil
}

// read returns the content of a blob. It reads at most a byte more than the descriptor says, and checks the digest.
func read(r io.Reader, d ocispec.Descriptor) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, d.Size+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(text)) != d.Size || digest.FromBytes(text) != d.Digest:
		return nil, fmt.Errorf("blob %s has other content than its digest says: %w", d.Digest, api.ErrInvalid)
	}
	return text, nil
}

// WriteLayout writes an OCI image layout as a tar archive.
func (a Artifact) WriteLayout(w io.Writer) error {
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{{
			MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifactType, Digest: a.Digest(), Size: int64(len(a.Manifest)),
			Annotations: map[string]string{ocispec.AnnotationRefName: a.Package.Version},
		}},
	})
	if err != nil {
		return err
	}
	blob := func(b []byte) string { return "blobs/sha256/" + digest.FromBytes(b).Encoded() }
	t := tar.NewWriter(w)
	for _, f := range []struct {
		name string
		data []byte
	}{
		{ocispec.ImageLayoutFile, []byte(`{"imageLayoutVersion":"` + ocispec.ImageLayoutVersion + `"}`)},
		{ocispec.ImageIndexFile, index},
		{blob(a.Manifest), a.Manifest},
		{blob(ocispec.DescriptorEmptyJSON.Data), ocispec.DescriptorEmptyJSON.Data},
		{blob(a.Layer), a.Layer},
	} {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.data)), ModTime: time.Unix(0, 0)}); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return t.Close()
}

// ReadLayout reads what WriteLayout wrote, or another tool. Nothing of it gets on a disk.
func ReadLayout(r io.Reader) (Artifact, error) {
	bad := func(format string, args ...any) (Artifact, error) {
		return Artifact{}, fmt.Errorf("the file is not an OCI image layout with an addon: %w: %w", fmt.Errorf(format, args...), api.ErrInvalid)
	}
	files := map[string][]byte{}
	whole := &io.LimitedReader{R: r, N: maxLayout}
	t := tar.NewReader(whole)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return bad("read the archive, of at most %d bytes: %w", maxLayout, err)
		}
		if n == maxEntries {
			return bad("it has more than %d entries", maxEntries)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files[path.Clean(h.Name)], err = io.ReadAll(io.LimitReader(t, maxLayout)); err != nil {
			return bad("read the archive, of at most %d bytes: %w", maxLayout, err)
		}
	}
	var index ocispec.Index
	if err := json.Unmarshal(files[ocispec.ImageIndexFile], &index); err != nil {
		return bad("index.json: %w", err)
	}
	if len(index.Manifests) != 1 {
		return bad("index.json has %d manifests, want 1", len(index.Manifests))
	}
	get := func(d ocispec.Descriptor) ([]byte, error) {
		if err := d.Digest.Validate(); err != nil {
			return nil, err
		}
		return read(bytes.NewReader(files["blobs/sha256/"+d.Digest.Encoded()]), d)
	}
	manifest, err := get(index.Manifests[0])
	if err != nil {
		return bad("manifest: %w", err)
	}
	l, err := layerOf(manifest)
	if err != nil {
		return Artifact{}, err
	}
	layer, err := get(l)
	if err != nil {
		return bad("layer: %w", err)
	}
	return parse(manifest, layer)
}

// head is addon.yaml.
type head struct {
	Name        string             `json:"name"`
	Version     string             `json:"version"`
	Description string             `json:"description"`
	MinTreeline string             `json:"min_treeline"`
	Parameters  json.RawMessage    `json:"parameters"`
	Webhooks    []api.AddonWebhook `json:"webhooks"`
}

// definition is a file of a kind or of a resource, as treeline apply takes it.
type definition struct {
	Kind        string          `json:"kind"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
	Spec        json.RawMessage `json:"spec"`
}

// ReadDirectory reads a package: addon.yaml, and optionally sla.yaml, kinds/*.yaml and resources/*.yaml. README.md and
// LICENSE are not part of the package; other files are refused, and so are links.
func ReadDirectory(dir string) (p api.AddonPackage, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return p, err
	}
	defer root.Close()
	var names []string
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "." || name == "kinds" || name == "resources"), name == "README.md", name == "LICENSE":
			return nil
		case !d.Type().IsRegular() || !isPart(name):
			return fmt.Errorf("%s: want the files addon.yaml, sla.yaml, kinds/*.yaml and resources/*.yaml only: %w", name, api.ErrInvalid)
		}
		if names = append(names, name); len(names) > maxFiles {
			return fmt.Errorf("more than %d files: %w", maxFiles, api.ErrTooLarge)
		}
		return nil
	})
	if err != nil {
		return p, fmt.Errorf("read %s: %w", dir, err)
	}
	slices.Sort(names)
	if !slices.Contains(names, "addon.yaml") {
		return p, fmt.Errorf("read %s: addon.yaml is missing: %w", dir, api.ErrInvalid)
	}
	for _, name := range names {
		if err := readPart(root, name, &p); err != nil {
			return p, fmt.Errorf("read %s: %s: %w", dir, name, err)
		}
	}
	return p, nil
}

func isPart(name string) bool {
	of, file := path.Split(name)
	return name == "addon.yaml" || name == "sla.yaml" || (of == "kinds/" || of == "resources/") && strings.HasSuffix(file, ".yaml")
}

func readPart(root *os.Root, name string, p *api.AddonPackage) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s is not a regular file: %w", name, api.ErrInvalid))
	}
	text, err := io.ReadAll(io.LimitReader(f, api.MaxAddonBytes+1))
	if err != nil {
		return err
	}
	if len(text) > api.MaxAddonBytes {
		return fmt.Errorf("more than %d bytes: %w", api.MaxAddonBytes, api.ErrTooLarge)
	}
	doc, err := yaml.ToJSON(text)
	if err != nil {
		return err
	}
	if name == "sla.yaml" {
		p.SLA = doc
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	if name == "addon.yaml" {
		var h head
		if err := d.Decode(&h); err != nil {
			return fmt.Errorf("%w: %w", err, api.ErrInvalid)
		}
		p.Name, p.Version, p.Description, p.MinTreeline, p.Parameters, p.Webhooks = h.Name, h.Version, h.Description, h.MinTreeline, h.Parameters, h.Webhooks
		return nil
	}
	var o definition
	if err := d.Decode(&o); err != nil {
		return fmt.Errorf("%w: %w", err, api.ErrInvalid)
	}
	switch {
	case strings.HasPrefix(name, "kinds/") && o.Kind == "kind" && o.Schema != nil && o.Spec == nil:
		p.Kinds = append(p.Kinds, api.NewCustomKind{Name: o.Name, Description: o.Description, Schema: o.Schema})
	case strings.HasPrefix(name, "resources/") && o.Kind != "" && o.Spec != nil && o.Schema == nil && o.Description == "":
		p.Resources = append(p.Resources, api.NewCustomResource{Kind: o.Kind, Name: o.Name, Spec: o.Spec})
	default:
		return fmt.Errorf("want kind: kind, name and schema in kinds/, and kind, name and spec in resources/: %w", api.ErrInvalid)
	}
	return nil
}
