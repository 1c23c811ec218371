package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestArchiveIsReproducibleAndWhole(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "app")
	if err := os.WriteFile(bin, []byte("not really a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	img := Image{Ref: "treeline.local/hello:1", Binary: bin, Arch: "arm64"}
	var one, two bytes.Buffer
	for _, w := range []io.Writer{&one, &two} {
		if err := Write(w, img); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Fatal("two builds of one binary differ")
	}

	files := untar(t, &one)
	var index v1.Index
	decode(t, files["index.json"], &index)
	var manifest v1.Manifest
	decode(t, blob(t, files, index.Manifests[0]), &manifest)
	var config v1.Image
	decode(t, blob(t, files, manifest.Config), &config)
	layer := blob(t, files, manifest.Layers[0])

	if got := index.Manifests[0].Annotations[v1.AnnotationRefName]; got != img.Ref {
		t.Errorf("reference %q, want %q", got, img.Ref)
	}
	if config.Architecture != "arm64" || config.OS != "linux" {
		t.Errorf("the platform is %s/%s, want linux and this machine's architecture", config.OS, config.Architecture)
	}
	if config.RootFS.DiffIDs[0] != digest.FromBytes(layer) {
		t.Error("the config does not name the digest of the layer")
	}
	if got := untar(t, bytes.NewBuffer(layer))["app"]; string(got) != "not really a program" {
		t.Errorf("the layer contains %q", got)
	}
}

func untar(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
}

func blob(t *testing.T, files map[string][]byte, d v1.Descriptor) []byte {
	t.Helper()
	b := files["blobs/sha256/"+d.Digest.Encoded()]
	if digest.FromBytes(b) != d.Digest || int64(len(b)) != d.Size {
		t.Fatalf("blob %s is missing or wrong", d.Digest)
	}
	return b
}

func decode(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}
