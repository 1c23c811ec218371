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
	"sync"

	"github.com/containerd/containerd/v2/core/images"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/treeline-edge/treeline/api"
)

// archiveScheme names an archive itself, "oci-archive:hello.tar", by its path
// within a directory of Config.ImageDirs or by its whole path.
const archiveScheme = "oci-archive:"

const maxIndex = 1 << 20 // bytes of an archive's index

// archive is one version of a file: a file that changes is another archive.
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

// archives finds images in the operator's directories. Every access goes
// through an os.Root, so that no name and no link leads out of them.
type archives struct {
	dirs []string

	mu   sync.Mutex          // guards refs
	refs map[string][]string // archive id → names in its index
}

// byPath finds the archive that an SLA names by path.
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
			return archive{}, because(api.ReasonImageNotFound, "archive %q: %w", path, err)
		}
		return a, nil
	}
	return archive{}, because(api.ReasonImageNotFound, "no archive %q lies below the image directories of this node (%s)",
		path, strings.Join(as.dirs, ", "))
}

// byRef finds the archive that holds an image of one of these names. Archives
// that cannot be read are passed over; naming them by path says why.
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

// names are those that the archive's index gives its images.
func (as *archives) names(a archive) []string {
	as.mu.Lock()
	names, known := as.refs[a.id]
	as.mu.Unlock()
	if known {
		return names
	}
	names = readNames(a)
	as.mu.Lock()
	if as.refs == nil {
		as.refs = make(map[string][]string)
	}
	as.refs[a.id] = names
	as.mu.Unlock()
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
