package command

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/forward"
)

func TestParsePort(t *testing.T) {
	for arg, want := range map[string]portSpec{
		"80":          {80, forward.Target{Protocol: "tcp", Port: 80}},
		"8080:80":     {8080, forward.Target{Protocol: "tcp", Port: 80}},
		":80/tcp":     {0, forward.Target{Protocol: "tcp", Port: 80}},
		"5353:53/udp": {5353, forward.Target{Protocol: "udp", Port: 53}},
	} {
		if got, err := parsePort(arg); got != want || err != nil {
			t.Errorf("%s: got %+v, %v, want %+v", arg, got, err, want)
		}
	}
	for _, arg := range []string{"", ":", "0", "80:", "65536", "a:80", "80/sctp", "1:2:3", "-1"} {
		if _, err := parsePort(arg); !errors.Is(err, errUsage) {
			t.Errorf("%q: got %v, want a usage error", arg, err)
		}
	}
}

func TestSidesOfACopy(t *testing.T) {
	for arg, want := range map[string]side{
		"shop/web#0:/tmp/x": {"shop/web#0", "/tmp/x"},
		"web:x":             {"web", "x"},
		"file":              {"", "file"},
		"./a:b":             {"", "./a:b"},
		"/a:b":              {"", "/a:b"},
		`C:\dir`:            {"", `C:\dir`},
	} {
		if got := sideOf(arg); got != want {
			t.Errorf("%s: got %+v, want %+v", arg, got, want)
		}
	}
}

// TestCopiesKeepTheirContent packs a directory and unpacks it under another name.
func TestCopiesKeepTheirContent(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), t.TempDir()
	if err := os.MkdirAll(filepath.Join(from, "sub", "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{"a": 0o644, "sub/run": 0o755} {
		if err := os.WriteFile(filepath.Join(from, name), []byte("content of "+name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := pack(&archive, from, "base"); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := unpack(&archive, root, "base", "copy"); err != nil {
		t.Fatal(err)
	}
	var got []string
	_ = filepath.WalkDir(to, func(p string, e fs.DirEntry, _ error) error {
		rel, _ := filepath.Rel(to, p)
		if info, _ := e.Info(); e.Type().IsRegular() {
			text, _ := os.ReadFile(p)
			rel += " " + info.Mode().Perm().String() + " " + string(text)
		}
		got = append(got, rel)
		return nil
	})
	want := ".|copy|copy/a -rw-r--r-- content of a|copy/sub|copy/sub/empty|copy/sub/run -rwxr-xr-x content of sub/run"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
}

// TestAHostileArchiveStaysInItsDirectory: the archive comes from a workload.
func TestAHostileArchiveStaysInItsDirectory(t *testing.T) {
	for _, c := range []struct {
		name    string
		headers []tar.Header
		fails   bool
	}{
		{"a path that leads out", []tar.Header{{Name: "base/../../out", Typeflag: tar.TypeReg, Size: 4}}, true},
		{"an absolute path", []tar.Header{{Name: "/etc/out", Typeflag: tar.TypeReg, Size: 4}}, true},
		{"another name", []tar.Header{{Name: "based", Typeflag: tar.TypeReg, Size: 4}}, true},
		{"a link to follow", []tar.Header{
			{Name: "base/", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "base/link", Typeflag: tar.TypeSymlink, Linkname: ".."},
			{Name: "base/link/out", Typeflag: tar.TypeReg, Size: 4},
		}, false}, // the link is not made: link is a directory
	} {
		outer := t.TempDir()
		to := filepath.Join(outer, "to")
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, h := range c.headers {
			if h.Mode == 0 {
				h.Mode = 0o644
			}
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(w, "evil"[:h.Size])
		}
		_ = w.Close()
		root, err := os.OpenRoot(to)
		if err != nil {
			t.Fatal(err)
		}
		err = unpack(&archive, root, "base", "copy")
		_ = root.Close()
		if c.fails != errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: got %v, want it refused: %t", c.name, err, c.fails)
		}
		if found, _ := filepath.Glob(filepath.Join(outer, "out")); len(found) > 0 {
			t.Errorf("%s: a file was written outside of the directory", c.name)
		}
	}
}
