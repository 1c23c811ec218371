// Package installer offers the programs of one release to machines that join: as files at a daemon's
// port, or as a bundle for machines without a network.
//
// The list of files with their hashes is part of install.sh. Whoever knows the hash of that script
// can therefore receive everything over connections that are not authenticated.
//
//	r := installer.Open(installer.Options{Dir: dir, Script: deploy.Script, Files: deploy.Files})
//	script, err := r.Install(installer.Node, "https://munich.example:7444")
//	http.Handle("/install/", installer.NewServer(r, url, log))
package installer

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/build"
)

// Programs are the programs of a release.
var Programs = []string{"root-orchestrator", "cluster-orchestrator", "node-engine", "netmanager", "treeline"}

// needed are the programs that each role needs at least.
var needed = map[Role][]string{
	Node:    {"node-engine", "netmanager", "treeline"},
	Cluster: {"cluster-orchestrator", "treeline"},
	Root:    {"root-orchestrator", "treeline"},
}

// Role is what a machine is installed as.
type Role string

const (
	Node    Role = "node"
	Cluster Role = "cluster"
	Root    Role = "root"
)

// architectures are those that a release may have programs for.
var architectures = []string{"amd64", "arm64"}

// Options describe a release.
type Options struct {
	// Dir has the programs: in linux-amd64/ and linux-arm64/, or those of this machine's
	// architecture directly. Empty: the directory of this program.
	Dir string
	// Script is install.sh with the line listMark, Files are the units and configurations.
	Script string
	Files  fs.FS
	// Version is the one that the programs must have; empty: that of this program.
	Version string
}

// Release is the files of one version. It is safe for concurrent use.
type Release struct {
	opt  Options
	dirs map[string][]string // by architecture; the first that has a program counts

	mu     sync.Mutex         // guards hashes, and is held while a program is hashed
	hashes map[string]*hashed // by path of the program
}

// hashed is what is known of a program as long as its file has the same time and size.
type hashed struct {
	info    fs.FileInfo
	sha256  string
	problem error
}

// File is one file of a release.
type File struct {
	Name   string // such as linux-amd64/node-engine
	SHA256 string
	Size   int64
	path   string // of a program; empty: in Options.Files
}

// Open returns the release in a directory. Nothing is read before it is asked for.
func Open(o Options) *Release {
	o.Version = cmp.Or(o.Version, build.Current().Version)
	r := &Release{opt: o, dirs: map[string][]string{}, hashes: map[string]*hashed{}}
	dir := o.Dir
	if dir == "" {
		exe, err := os.Executable()
		if err != nil {
			return r
		}
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		dir = filepath.Dir(exe)
	}
	for _, arch := range architectures {
		r.dirs[arch] = []string{filepath.Join(dir, "linux-"+arch)}
		if o.Dir == "" && strings.HasPrefix(filepath.Base(dir), "linux-") { // this program is in one of the directories
			r.dirs[arch] = append(r.dirs[arch], filepath.Join(filepath.Dir(dir), "linux-"+arch))
		}
	}
	r.dirs[runtime.GOARCH] = append(r.dirs[runtime.GOARCH], dir)
	return r
}

// Install returns install.sh for machines that fetch the files from a URL; empty: from the script's
// own directory. It fails with ErrNotFound, and names the cause, if the programs for the role are
// not there.
func (r *Release) Install(role Role, url string) (string, error) {
	files, err := r.List()
	if err != nil {
		return "", err
	}
	for _, p := range needed[role] {
		if !slices.ContainsFunc(files, func(f File) bool { return path.Base(f.Name) == p && f.path != "" }) {
			return "", r.missing(p)
		}
	}
	return r.render(files, url)
}

func (r *Release) missing(program string) error {
	var found error
	for _, arch := range architectures {
		for _, dir := range r.dirs[arch] {
			if _, err := r.program(filepath.Join(dir, program), arch); err != nil && (found == nil || !errors.Is(err, fs.ErrNotExist)) {
				found = err
			}
		}
	}
	return fmt.Errorf("no program %s of version %s to install: %w: %w", program, r.opt.Version, found, api.ErrNotFound)
}

// listMark is the line of install.sh that the list of files replaces.
const listMark = "#@ list\n"

func (r *Release) render(files []File, url string) (string, error) {
	if strings.Count(r.opt.Script, listMark) != 1 {
		return "", fmt.Errorf("install.sh has no line %q", strings.TrimSpace(listMark))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "version=%s\nfrom=%s\nlist='\n", quote(r.opt.Version), quote(url))
	for _, f := range files {
		fmt.Fprintf(&b, "%s %d %s\n", f.SHA256, f.Size, f.Name)
	}
	b.WriteString("'\n")
	return strings.Replace(r.opt.Script, listMark, b.String(), 1), nil
}

// quote returns text as one word of a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// List returns all files of the release, sorted by name. Programs of another version are left out.
func (r *Release) List() ([]File, error) {
	var files []File
	for _, arch := range architectures {
		for _, p := range Programs {
			if f, ok := r.find(p, arch); ok {
				files = append(files, f)
			}
		}
	}
	err := fs.WalkDir(r.opt.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(r.opt.Files, name)
		files = append(files, File{Name: name, SHA256: Sum(text), Size: int64(len(text))})
		return err
	})
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	return files, err
}

// Sum returns a SHA-256 as sha256sum prints it.
func Sum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// find returns a program for an architecture, if the release has it.
func (r *Release) find(program, arch string) (File, bool) {
	for _, dir := range r.dirs[arch] {
		at := filepath.Join(dir, program)
		if h, err := r.program(at, arch); err == nil {
			return File{Name: path.Join("linux-"+arch, program), SHA256: h.sha256, Size: h.info.Size(), path: at}, true
		}
	}
	return File{}, false
}

// program hashes the program in a file, unless it is known, and checks its version.
func (r *Release) program(at, arch string) (*hashed, error) {
	info, err := os.Stat(at)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.hashes[at]
	if h == nil || !os.SameFile(h.info, info) || h.info.ModTime() != info.ModTime() || h.info.Size() != info.Size() {
		h = &hashed{info: info}
		h.sha256, h.problem = r.examine(at, arch)
		r.hashes[at] = h
	}
	return h, h.problem
}

func (r *Release) examine(at, arch string) (string, error) {
	info, err := buildinfo.ReadFile(at)
	if err != nil {
		return "", fmt.Errorf("%s is no program of Treeline: %w", at, err)
	}
	for _, s := range info.Settings {
		if want := map[string]string{"GOARCH": arch, "GOOS": "linux"}[s.Key]; want != "" && s.Value != want {
			return "", fmt.Errorf("%s is for %s=%s, want %s", at, s.Key, s.Value, want)
		}
	}
	if info.Main.Version != r.opt.Version {
		return "", fmt.Errorf("%s has the version %s", at, info.Main.Version)
	}
	f, err := os.Open(at)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// open opens the file of a name in List.
func (r *Release) open(name string) (io.ReadSeekCloser, File, error) {
	dir, program := path.Split(name)
	if arch, ok := strings.CutPrefix(path.Clean(dir), "linux-"); ok && slices.Contains(Programs, program) {
		f, ok := r.find(program, arch)
		if !ok {
			return nil, f, fs.ErrNotExist
		}
		file, err := os.Open(f.path)
		return file, f, err
	}
	file, err := r.opt.Files.Open(name)
	if err != nil {
		return nil, File{}, err
	}
	info, err := file.Stat()
	seeker, ok := file.(io.ReadSeekCloser)
	if err != nil || info.IsDir() || !ok {
		_ = file.Close()
		return nil, File{}, fs.ErrNotExist
	}
	return seeker, File{Name: name, Size: info.Size()}, nil
}
