package containerd

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// archiveScheme refers to an archive by its path, "oci-archive:hello.tar", which is absolute or
// relative to a directory of Options.ImageDirs.
const archiveScheme = "oci-archive:"

const maxIndex = 1 << 20 // bytes of the index in an archive

// archive is one version of a file: a changed file is another archive.
type archive struct {
	dir, path string
	id        string
}

func (a archive) open() (io.ReadCloser, error) {
	root, err := os.OpenRoot(a.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Open(a.path)
}

// archives finds images in the operator's directories. It opens all files with os.Root, so that
// neither names nor links lead out of the directories.
type archives struct {
	dirs []string
	refs cache[[]string] // by archive id, the names in its index
}

// byPath returns the archive of a path in an SLA.
func (as *archives) byPath(path string) (archive, error) {
	for _, dir := range as.dirs {
		rel := path
		if filepath.IsAbs(path) {
			var err error
			if rel, err = filepath.Rel(dir, path); err != nil {
				continue
			}
		}
		if !filepath.IsLocal(rel) {
			continue
		}
		a, err := identify(dir, rel)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return archive{}, runtime.Errorf(api.ReasonImageNotFound, "archive %q: %w", path, err)
		}
		return a, nil
	}
	return archive{}, runtime.Errorf(api.ReasonImageNotFound, "archive %q is not in the image directories of this node (%s)",
		path, strings.Join(as.dirs, ", "))
}

// byRef returns the archive that contains an image with one of the names. It ignores archives
// that cannot be read; byPath returns the error of those.
func (as *archives) byRef(names ...string) (archive, bool) {
	for _, dir := range as.dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), ".tar") {
				continue
			}
			a, err := identify(dir, e.Name())
			if err == nil && slices.ContainsFunc(as.names(a), func(n string) bool { return slices.Contains(names, n) }) {
				return a, true
			}
		}
	}
	return archive{}, false
}

func identify(dir, path string) (archive, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return archive{}, err
	}
	defer root.Close()
	info, err := root.Stat(path)
	if err != nil {
		return archive{}, err
	}
	if !info.Mode().IsRegular() {
		return archive{}, fmt.Errorf("%s is no regular file", path)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%d", dir, path, info.Size(), info.ModTime().UnixNano()))
	return archive{dir: dir, path: path, id: hex.EncodeToString(sum[:16])}, nil
}

// names returns the names of images in the archive's index.
func (as *archives) names(a archive) []string {
	names, ok := as.refs.get(a.id)
	if !ok {
		names = readNames(a)
		as.refs.put(a.id, names)
	}
	return names
}

func readNames(a archive) (names []string) {
	f, err := a.open()
	if err != nil {
		return nil
	}
	defer f.Close()
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if err != nil {
			return nil
		}
		if filepath.Clean(h.Name) != v1.ImageIndexFile {
			continue
		}
		var index v1.Index
		if err := json.NewDecoder(io.LimitReader(tr, maxIndex)).Decode(&index); err != nil {
			return nil
		}
		for _, m := range index.Manifests {
			for _, key := range []string{v1.AnnotationRefName, images.AnnotationImageName} {
				if n := m.Annotations[key]; n != "" {
					names = append(names, n)
				}
			}
		}
		return names
	}
}
