// Command release builds the files of a release from the commit of this checkout. scripts/release
// runs it. The same commit, toolchain and CA certificates give the same bytes, on any machine and in
// any directory.
package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/deploy"
	"github.com/treeline-edge/treeline/internal/installer"
)

// sources are the packages of the programs of a release.
var sources = map[string]string{
	"root-orchestrator":    "./root-orchestrator",
	"cluster-orchestrator": "./cluster-orchestrator",
	"node-engine":          "./node-engine",
	"netmanager":           "./netmanager",
	"treeline":             "./cli",
}

// platforms are those of the daemons, as GOARCH; the CLI is also built for other systems.
var (
	platforms    = []string{"amd64", "arm64"}
	cliElsewhere = []string{"darwin", "windows"}
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	out := flag.String("out", "dist", "directory for the release; it must be empty or missing")
	arch := flag.String("arch", strings.Join(platforms, ","), "architectures, separated by commas")
	linuxOnly := flag.Bool("linux-only", false, "without the CLI for other systems")
	ca := flag.String("ca", "/etc/ssl/certs/ca-certificates.crt", "CA certificates for the images")
	flag.Parse()
	r := release{out: *out, arches: strings.Split(*arch, ","), ca: *ca, elsewhere: !*linuxOnly}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "release: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := r.make(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

type release struct {
	out, ca   string
	arches    []string
	elsewhere bool

	work    string // build directory, with ARCH/linux-ARCH/PROGRAM
	version string // as treeline version prints it
	time    time.Time
}

func (r *release) make(ctx context.Context) (err error) {
	for _, a := range r.arches {
		if !slices.Contains(platforms, a) {
			return fmt.Errorf("build for %q: the architectures are %s", a, strings.Join(platforms, " and "))
		}
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	if entries, err := os.ReadDir(r.out); err != nil {
		return err
	} else if len(entries) > 0 {
		return fmt.Errorf("write the release to %s: the directory is not empty: delete it, or name another with --out", r.out)
	}
	if r.work, err = os.MkdirTemp("", "treeline-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	for _, step := range []func(context.Context) error{r.build, r.bundles, r.clients, r.debs, r.images, r.sbom, r.sums} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// compile builds a program of the release statically, and returns its build information.
func (r *release) compile(ctx context.Context, program, goos, arch, to string) (*buildinfo.BuildInfo, error) {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", to, sources[program])
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+arch, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s for %s/%s: %w\n%s", program, goos, arch, err, msg)
	}
	return buildinfo.ReadFile(to)
}

// build builds the programs for Linux. It refuses uncommitted changes, because nobody could build
// the same release again.
func (r *release) build(ctx context.Context) error {
	for _, arch := range r.arches {
		for _, p := range installer.Programs {
			info, err := r.compile(ctx, p, "linux", arch, r.program(arch, p))
			if err != nil {
				return err
			}
			settings := map[string]string{}
			for _, s := range info.Settings {
				settings[s.Key] = s.Value
			}
			if settings["vcs.revision"] == "" {
				return errors.New("go recorded no commit in the programs: run this in a clone with its .git directory (go does not read git worktrees)")
			}
			if settings["vcs.modified"] != "false" {
				return errors.New("the checkout has uncommitted changes, so that nobody could build this release again: commit or remove them (git status)")
			}
			r.version = info.Main.Version
			if r.time, err = time.Parse(time.RFC3339, settings["vcs.time"]); err != nil {
				return fmt.Errorf("read the time of the commit: %w", err)
			}
		}
	}
	return nil
}

func (r *release) program(arch, name string) string {
	return filepath.Join(r.work, arch, "linux-"+arch, name)
}

// create creates a file of the release. It fails if the file exists.
func (r *release) create(format string, args ...any) (*os.File, error) {
	return os.OpenFile(filepath.Join(r.out, fmt.Sprintf(format, args...)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
}

// bundles writes an archive with install.sh and all programs for each architecture.
func (r *release) bundles(context.Context) error {
	for _, arch := range r.arches {
		err := r.gzipped(fmt.Sprintf("treeline_%s_linux_%s.tar.gz", r.version, arch), func(w io.Writer) error {
			files := installer.Open(installer.Options{Dir: filepath.Join(r.work, arch), Script: deploy.Script, Files: deploy.Files, Version: r.version})
			_, err := files.WriteBundle(w)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *release) gzipped(name string, write func(io.Writer) error) error {
	f, err := r.create("%s", name)
	if err != nil {
		return err
	}
	defer f.Close()
	z := gzip.NewWriter(f)
	if err := write(z); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return errors.Join(z.Close(), f.Close())
}

// clients writes the CLI alone, for systems that have no daemons too.
func (r *release) clients(ctx context.Context) error {
	systems := []string{"linux"}
	if r.elsewhere {
		systems = append(systems, cliElsewhere...)
	}
	for _, goos := range systems {
		for _, arch := range r.arches {
			at, name := r.program(arch, "treeline"), "treeline"
			if goos == "windows" {
				name += ".exe"
			}
			if goos != "linux" {
				at = filepath.Join(r.work, goos, arch, name)
				if _, err := r.compile(ctx, "treeline", goos, arch, at); err != nil {
					return err
				}
			}
			if err := r.client(goos, arch, name, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *release) client(goos, arch, name, at string) error {
	program, err := os.ReadFile(at)
	if err != nil {
		return err
	}
	stem := fmt.Sprintf("treeline-cli_%s_%s_%s", r.version, goos, arch)
	if goos != "windows" {
		return r.gzipped(stem+".tar.gz", func(w io.Writer) error {
			t := tar.NewWriter(w)
			if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(program)), ModTime: r.time, Format: tar.FormatPAX}); err != nil {
				return err
			}
			_, err := t.Write(program)
			return errors.Join(err, t.Close())
		})
	}
	f, err := r.create("%s.zip", stem)
	if err != nil {
		return err
	}
	defer f.Close()
	z := zip.NewWriter(f)
	w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: r.time})
	if err != nil {
		return err
	}
	_, err = w.Write(program)
	return errors.Join(err, z.Close(), f.Close())
}

// sums writes the SHA-256 of all files, as sha256sum -c reads them.
func (r *release) sums(context.Context) error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var all strings.Builder
	for _, e := range entries {
		sum, err := sumOf(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&all, "%s  %s\n", sum, e.Name())
	}
	if err := os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(all.String()), 0o644); err != nil {
		return err
	}
	fmt.Printf("Treeline %s (%s) in %s:\n%s", r.version, runtime.Version(), r.out, all.String())
	return nil
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
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
