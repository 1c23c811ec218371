package installer

import (
	"archive/tar"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// bundleDir is the directory in a bundle that contains all its files.
const bundleDir = "treeline"

// WriteBundle writes a tar archive with install.sh, all files of the release and images, which are
// OCI archives. install.sh in it needs no network and no server. The archive has the file SHA256SUMS,
// and depends on nothing but the contents of its files.
func (r *Release) WriteBundle(w io.Writer, images ...string) ([]File, error) {
	files, err := r.List()
	if err != nil {
		return nil, err
	}
	for _, p := range needed[Node] {
		if !slices.ContainsFunc(files, func(f File) bool { return path.Base(f.Name) == p && f.path != "" }) {
			return nil, r.missing(p)
		}
	}
	for _, image := range images {
		f, err := imageFile(image)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	for i := 1; i < len(files); i++ {
		if files[i].Name == files[i-1].Name {
			return nil, fmt.Errorf("two files of the bundle are named %s: rename one: %w", files[i].Name, api.ErrInvalid)
		}
	}
	script, err := r.render(files, "")
	if err != nil {
		return nil, err
	}
	var sums strings.Builder
	fmt.Fprintf(&sums, "%s  install.sh\n", Sum([]byte(script)))
	for _, f := range files {
		fmt.Fprintf(&sums, "%s  %s\n", f.SHA256, f.Name)
	}
	t := tar.NewWriter(w)
	for _, text := range []struct {
		name, text string
		mode       int64
	}{{"install.sh", script, 0o755}, {"SHA256SUMS", sums.String(), 0o644}} {
		if err := add(t, text.name, text.mode, int64(len(text.text)), strings.NewReader(text.text)); err != nil {
			return nil, err
		}
	}
	for _, f := range files {
		if err := r.addFile(t, f); err != nil {
			return nil, fmt.Errorf("add %s to the bundle: %w", f.Name, err)
		}
	}
	return files, t.Close()
}

func (r *Release) addFile(t *tar.Writer, f File) error {
	var from io.ReadCloser
	var err error
	mode := int64(0o644)
	if f.path != "" {
		from, err = os.Open(f.path)
		if strings.HasPrefix(f.Name, "linux-") {
			mode = 0o755
		}
	} else {
		from, err = r.opt.Files.Open(f.Name)
	}
	if err != nil {
		return err
	}
	defer from.Close()
	sum := sha256.New()
	if err := add(t, f.Name, mode, f.Size, io.TeeReader(from, sum)); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != f.SHA256 {
		return fmt.Errorf("the file changed while it was read: %w", api.ErrConflict)
	}
	return nil
}

func add(t *tar.Writer, name string, mode, size int64, from io.Reader) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: path.Join(bundleDir, name), Mode: mode, Size: size, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(t, from)
	return err
}

func imageFile(at string) (File, error) {
	name := filepath.Base(at)
	if !strings.HasSuffix(name, ".tar") || strings.ContainsAny(name, " '\"\\\n") {
		return File{}, fmt.Errorf("image %q: want an OCI archive NAME.tar, without spaces and quotes in its name: %w", at, api.ErrInvalid)
	}
	file, err := os.Open(at)
	if err != nil {
		return File{}, err
	}
	defer file.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, file)
	return File{Name: "images/" + name, SHA256: hex.EncodeToString(sum.Sum(nil)), Size: n, path: at}, err
}
