package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/testbed/gobuild"
)

// TestRelease builds a release of the commit from a clone, without a network, uses what is in it, and builds a
// program again in another directory. Uncommitted changes are not tested.
func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("builds all programs")
	}
	top, err := gobuild.Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	here := filepath.Join(t.TempDir(), "here")
	clone(t, top, here)
	one := filepath.Join(t.TempDir(), "dist")
	cmd := exec.CommandContext(t.Context(), "scripts/release", "--out", one, "--arch", runtime.GOARCH, "--linux-only")
	cmd.Dir, cmd.Env = here, append(os.Environ(), "GOPROXY=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("scripts/release: %v\n%s", err, out)
	}
	cmd = exec.Command("sh", "-c", "sha256sum -c SHA256SUMS")
	cmd.Dir = one
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}

	bundle := file(t, one, "treeline_*_linux_*.tar.gz")
	dir := t.TempDir()
	unpack(t, bundle, dir)
	out, err := exec.Command(filepath.Join(dir, "treeline", "linux-"+runtime.GOARCH, "treeline"), "version", "-o", "json").Output()
	if err != nil {
		t.Fatalf("treeline version: %v", err)
	}
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(bundle), "treeline_"), "_linux_"+runtime.GOARCH+".tar.gz")
	if !strings.Contains(string(out), `"`+version+`"`) {
		t.Errorf("treeline version prints %s, the archive has the version %s", out, version)
	}

	elsewhere := filepath.Join(t.TempDir(), "another", "directory")
	clone(t, top, elsewhere)
	t.Chdir(elsewhere)
	again := filepath.Join(t.TempDir(), "netmanager")
	if _, err := (&release{}).compile(t.Context(), "netmanager", "linux", runtime.GOARCH, again); err != nil {
		t.Fatal(err)
	}
	if read(t, again) != read(t, filepath.Join(dir, "treeline", "linux-"+runtime.GOARCH, "netmanager")) {
		t.Error("a build of the same commit in another directory gives another netmanager")
	}

	for name, want := range map[string][]string{
		"treeline":         {"./usr/bin/treeline", "./usr/share/man/man1/treeline.1.gz", "./usr/share/bash-completion/completions/treeline"},
		"treeline-root":    {"./usr/bin/root-orchestrator", "./lib/systemd/system/treeline-root.service", "./etc/treeline/root.yaml"},
		"treeline-cluster": {"./usr/bin/cluster-orchestrator", "./lib/systemd/system/treeline-cluster.service"},
		"treeline-node":    {"./usr/bin/node-engine", "./usr/bin/netmanager", "./lib/systemd/system/treeline-node.service", "./lib/systemd/system/treeline-net.service"},
	} {
		deb := file(t, one, name+"_*.deb")
		content, err := exec.Command("dpkg-deb", "--contents", deb).CombinedOutput()
		if err != nil {
			t.Fatalf("dpkg-deb: %v\n%s", err, content)
		}
		for _, path := range want {
			if !strings.Contains(string(content), path+"\n") {
				t.Errorf("%s has no %s:\n%s", filepath.Base(deb), path, content)
			}
		}
		root := t.TempDir()
		if out, err := exec.Command("dpkg-deb", "--extract", deb, root).CombinedOutput(); err != nil {
			t.Fatalf("dpkg-deb: %v\n%s", err, out)
		}
		units, _ := filepath.Glob(filepath.Join(root, "lib/systemd/system/*.service"))
		for _, unit := range units {
			if text := read(t, unit); strings.Contains(text, "/usr/local/") {
				t.Errorf("%s names /usr/local, where the package has nothing:\n%s", filepath.Base(unit), text)
			}
		}
	}

	var bom struct {
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal([]byte(read(t, file(t, one, "*.cdx.json"))), &bom); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, c := range bom.Components {
		found[c.Name] = c.Version
	}
	for _, name := range []string{"node-engine", "github.com/containerd/containerd/v2", "preact", "std"} {
		if found[name] == "" {
			t.Errorf("the bill of materials has no %s: %v", name, found)
		}
	}
}

func clone(t *testing.T, top, to string) {
	t.Helper()
	if out, err := exec.Command("git", "clone", "-q", "file://"+top, to).CombinedOutput(); err != nil {
		t.Fatalf("git clone: %v\n%s", err, out)
	}
}

// TestPackagesOfFakeProgramsAreReproducible packs the same files in two directories at different times.
func TestPackagesOfFakeProgramsAreReproducible(t *testing.T) {
	t.Chdir("../..") // where the command runs
	var sums []string
	for _, umask := range []fs.FileMode{0o600, 0o644} {
		r := release{out: t.TempDir(), work: t.TempDir(), arches: platforms, version: "v1.2.3-rc1", time: time.Unix(1700000000, 0).UTC()}
		r.ca = filepath.Join(r.work, "ca.crt")
		manual := filepath.Join(r.work, "man")
		for _, path := range []string{r.ca, filepath.Join(manual, "treeline.1")} {
			if err := write(path, "text\n", umask); err != nil {
				t.Fatal(err)
			}
		}
		for _, arch := range r.arches {
			for p := range sources {
				if err := write(r.program(arch, p), p+" for "+arch, umask); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, step := range []func() error{
			func() error { return r.packages(t.Context(), manual) },
			func() error { return r.images(t.Context()) },
			func() error { return r.client("linux", "amd64", "treeline", r.program("amd64", "treeline")) },
			func() error { return r.client("windows", "arm64", "treeline.exe", r.program("arm64", "treeline")) },
			func() error { return r.sums(t.Context()) },
		} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		sums = append(sums, read(t, filepath.Join(r.out, "SHA256SUMS")))
	}
	if n := strings.Count(sums[0], "\n"); n != 13 || sums[0] != sums[1] {
		t.Errorf("the files of two runs, want 13 and the same:\n%s\n%s", sums[0], sums[1])
	}
}

func TestVersionsOfPackagesAreOrdered(t *testing.T) {
	for _, c := range [][2]string{{"v1.2.3-rc1", "v1.2.3"}, {"v0.0.0-20261128225127-fadcc993df2d", "v0.0.1"}, {"v1.2.3", "v1.10.0"}} {
		if err := exec.Command("dpkg", "--compare-versions", debVersion(c[0]), "lt", debVersion(c[1])).Run(); err != nil {
			t.Errorf("dpkg does not order %s before %s", c[0], c[1])
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// file returns the only file of a directory that has a pattern.
func file(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in the release: found %v, %v", pattern, found, err)
	}
	return found[0]
}

func unpack(t *testing.T, path, dir string) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader([]byte(read(t, path))))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(dir, filepath.Clean(h.Name))
		if err := write(at, string(text), h.FileInfo().Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}
