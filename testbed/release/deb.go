package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/deploy"
)

// A deb is one Debian package.
type deb struct {
	name, summary string
	programs      []string
	daemons       []string // the parts of the names of units and configurations, as in deploy
	depends       string
	recommends    string
}

var debs = []deb{
	{name: "treeline", summary: "command line of Treeline", programs: []string{"treeline"}},
	{name: "treeline-root", summary: "root orchestrator of Treeline", programs: []string{"root-orchestrator"}, daemons: []string{"root"}, recommends: "treeline, ca-certificates"},
	{
		name: "treeline-cluster", summary: "cluster orchestrator of Treeline", programs: []string{"cluster-orchestrator"}, daemons: []string{"cluster"},
		recommends: "treeline, ca-certificates",
	},
	{
		name: "treeline-node", summary: "node engine and netmanager of Treeline", programs: []string{"node-engine", "netmanager"}, daemons: []string{"node", "net"},
		depends: "e2fsprogs", recommends: "treeline, containerd, ca-certificates",
	},
}

// debVersion returns a version in the order of Debian: a pre-release is before its release.
func debVersion(v string) string {
	return strings.Replace(strings.TrimPrefix(v, "v"), "-", "~", 1)
}

// tag returns the version as an image's tag, which has no "+".
func (r *release) tag() string {
	return strings.ReplaceAll(strings.TrimPrefix(r.version, "v"), "+", "-")
}

// debs writes the Debian packages.
func (r *release) debs(ctx context.Context) error {
	manual := filepath.Join(r.work, "man")
	// The manual is the same on all architectures, but only a program for this machine can write it.
	cmd := exec.CommandContext(ctx, "go", "run", sources["treeline"], "man", manual)
	if slices.Contains(r.arches, runtime.GOARCH) {
		cmd = exec.CommandContext(ctx, r.program(runtime.GOARCH, "treeline"), "man", manual)
	}
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("write the manual: %w\n%s", err, msg)
	}
	return r.packages(ctx, manual)
}

func (r *release) packages(ctx context.Context, manual string) error {
	for _, arch := range r.arches {
		for _, d := range debs {
			if err := r.deb(ctx, d, arch, manual); err != nil {
				return fmt.Errorf("build the package %s for %s: %w", d.name, arch, err)
			}
		}
	}
	return nil
}

func (r *release) deb(ctx context.Context, d deb, arch, manual string) error {
	root := filepath.Join(r.work, "deb", arch, d.name)
	files := map[string]string{} // path in the package → content
	modes := map[string]fs.FileMode{}
	var conffiles []string
	for _, p := range d.programs {
		text, err := os.ReadFile(r.program(arch, p))
		if err != nil {
			return err
		}
		files["usr/bin/"+p], modes["usr/bin/"+p] = string(text), 0o755
	}
	for _, name := range d.daemons {
		unit, err := deploy.Files.ReadFile("systemd/treeline-" + name + ".service")
		if err != nil {
			return err
		}
		config, err := deploy.Files.ReadFile("config/" + name + ".yaml")
		if err != nil {
			return err
		}
		// install.sh installs to /usr/local, packages do not.
		files["lib/systemd/system/treeline-"+name+".service"] = strings.ReplaceAll(string(unit), "/usr/local/bin/", "/usr/bin/")
		at := "etc/treeline/" + name + ".yaml"
		files[at], modes[at] = string(config), 0o600
		conffiles = append(conffiles, "/"+at+"\n")
	}
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	files["usr/share/doc/"+d.name+"/copyright"] = string(license)
	if d.name == "treeline" {
		if err := addManual(files, manual); err != nil {
			return err
		}
		files["usr/share/bash-completion/completions/treeline"] = "eval \"$(treeline completion bash)\"\n"
	}
	var size int64
	for name, text := range files {
		size += int64(len(text))
		if err := write(filepath.Join(root, name), text, modes[name]); err != nil {
			return err
		}
	}
	for name, text := range d.control(r, arch, size, conffiles) {
		mode := fs.FileMode(0o755)
		if name == "control" || name == "conffiles" {
			mode = 0
		}
		if err := write(filepath.Join(root, "DEBIAN", name), text, mode); err != nil {
			return err
		}
	}
	out := filepath.Join(r.out, fmt.Sprintf("%s_%s_%s.deb", d.name, debVersion(r.version), arch))
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--root-owner-group", "-Zgzip", "-z6", "--build", root, out)
	cmd.Env = append(os.Environ(), fmt.Sprint("SOURCE_DATE_EPOCH=", r.time.Unix()))
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("dpkg-deb: %w\n%s", err, msg)
	}
	return nil
}

func addManual(files map[string]string, dir string) error {
	pages, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(dir, page.Name()))
		if err != nil {
			return err
		}
		var packed strings.Builder
		z := gzip.NewWriter(&packed)
		_, err = z.Write(text)
		if err = errors.Join(err, z.Close()); err != nil {
			return err
		}
		files["usr/share/man/man1/"+page.Name()+".gz"] = packed.String()
	}
	return nil
}

// write writes a file of a package and its directories, with modes that do not depend on the umask.
func write(path, text string, mode fs.FileMode) error {
	if mode == 0 {
		mode = 0o644
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		return err
	}
	if err := os.Chmod(path, mode); err != nil {
		return err
	}
	return os.Chtimes(path, time.Unix(0, 0), time.Unix(0, 0))
}

// control returns the control files of a package by their names.
func (d deb) control(r *release, arch string, size int64, conffiles []string) map[string]string {
	var b strings.Builder
	line := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s: %s\n", key, value)
		}
	}
	line("Package", d.name)
	line("Version", debVersion(r.version))
	line("Architecture", arch)
	line("Maintainer", "Treeline developers <treeline@localhost>")
	line("Installed-Size", fmt.Sprint((size+1023)/1024))
	line("Depends", d.depends)
	line("Recommends", d.recommends)
	line("Section", "admin")
	line("Priority", "optional")
	line("Homepage", "https://github.com/treeline-edge/treeline")
	line("Description", d.summary+"\n Hierarchical orchestration for the edge.")
	files := map[string]string{"control": b.String()}
	if len(d.daemons) == 0 {
		return files
	}
	var units []string
	for _, name := range d.daemons {
		units = append(units, "treeline-"+name+".service")
	}
	slices.Sort(conffiles)
	all := strings.Join(units, " ")
	files["conffiles"] = strings.Join(conffiles, "")
	// A machine that install.sh installed has units of the same names, which would hide these.
	files["preinst"] = `#!/bin/sh
set -e
if [ -e /usr/local/lib/treeline/install.sh ]; then
	echo "Treeline was installed here by install.sh. To upgrade it, run install.sh of the new release;" >&2
	echo "to use packages instead: sh /usr/local/lib/treeline/install.sh uninstall" >&2
	exit 1
fi
`
	// Daemons need a configuration or a token first, so that an installation starts none. An upgrade
	// restarts those that run; workloads keep running.
	files["postinst"] = `#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	[ -z "$2" ] || systemctl try-restart ` + all + `
fi
`
	files["prerm"] = `#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
	systemctl disable --now ` + all + `
fi
`
	// State holds keys and volumes of tenants: only people delete it.
	files["postrm"] = `#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "$1" = purge ] && [ -d /var/lib/treeline ]; then
	echo "keys and data stay in /var/lib/treeline; delete the directory if nothing needs them" >&2
fi
`
	return files
}
