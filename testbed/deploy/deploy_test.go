package deploy

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/yaml"
	net "github.com/treeline-edge/treeline/netmanager/wiring"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
	"github.com/treeline-edge/treeline/testbed/docsgen"
)

var update = flag.Bool("update", false, "write the sample configurations")

const shipped = "../../deploy"

// programs are the daemons with functions that print their configuration.
var programs = []struct {
	name, sample string
	defaults     any
	print        func(args ...string) (string, error)
}{
	{"root-orchestrator", "root.yaml", root.Defaults(), printed("root-orchestrator", root.Defaults())},
	{"cluster-orchestrator", "cluster.yaml", cluster.Defaults(), printed("cluster-orchestrator", cluster.Defaults())},
	{"node-engine", "node.yaml", node.Defaults(), printed("node-engine", node.Defaults())},
	{"netmanager", "net.yaml", net.Defaults(), printed("netmanager", net.Defaults())},
}

func printed[C any](name string, defaults C) func(...string) (string, error) {
	return func(args ...string) (string, error) {
		var out bytes.Buffer
		_, err := daemon.Load(name, defaults, daemon.Source{Args: append(args, "--print-config"), Stdout: &out})
		if errors.Is(err, daemon.ErrDone) {
			err = nil
		}
		return out.String(), err
	}
}

func TestSamplesAreFresh(t *testing.T) {
	for _, p := range programs {
		path := filepath.Join(shipped, "config", p.sample)
		want, err := Sample(p.name, p.defaults)
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil { //nolint:gosec // not secret
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(path)
		if err != nil || string(have) != want {
			t.Errorf("%s is stale (%v), run: go generate ./testbed/deploy", path, err)
		}
	}
}

// TestReferenceOfConfigurationIsFresh: docs/reference/configuration.md has the keys of all daemons.
func TestReferenceOfConfigurationIsFresh(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "reference", "configuration.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for _, p := range programs {
		table, err := Reference(p.defaults)
		if err != nil {
			t.Fatal(err)
		}
		if want, err = docsgen.Embed(want, p.name, table); err != nil {
			t.Fatal(err)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { //nolint:gosec // not secret
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is stale, run: go generate ./testbed/deploy", path)
	}
}

// TestSamplesSayTheDefaults reads each sample, unchanged and with every key set, with the program's
// own reader, and expects the defaults.
func TestSamplesSayTheDefaults(t *testing.T) {
	for _, p := range programs {
		t.Run(p.sample, func(t *testing.T) {
			want, err := p.print()
			if err != nil {
				t.Fatal(err)
			}
			sample, err := os.ReadFile(filepath.Join(shipped, "config", p.sample))
			if err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{"as it is": string(sample), "with every key": Uncommented(string(sample))} {
				file := filepath.Join(t.TempDir(), "config.yaml")
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				if got, err := p.print("--config", file); err != nil || got != want {
					t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
				}
			}
			for line := range strings.Lines(want) {
				key, _, _ := strings.Cut(strings.TrimSpace(line), ":")
				if strings.HasPrefix(key, "-") {
					continue
				}
				if s := string(sample); !strings.Contains(s, "#"+key+":") && !strings.Contains(s, "\n"+key+":\n") {
					t.Errorf("key %s is not in the sample", key)
				}
			}
		})
	}
}

func TestExamplesAreTaken(t *testing.T) {
	var files []string
	for _, dir := range []string{".", "*"} {
		some, err := filepath.Glob(filepath.Join(shipped, "examples", dir, "*.yaml"))
		if err != nil || len(some) == 0 {
			t.Fatalf("no examples in %s: %v", dir, err)
		}
		files = append(files, some...)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := yaml.ToJSON(text)
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		if _, err := api.ParseSLA(doc); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// TestUnitsAreUnderstood checks the units with systemd-analyze, with programs at the paths in the
// units.
func TestUnitsAreUnderstood(t *testing.T) {
	programtest.Need(t, "systemd-analyze")
	into := t.TempDir()
	var units []string
	for _, tier := range []string{"root", "cluster", "node", "net"} {
		install(t, into, tier, "a-token")
		unit := filepath.Join(into, "etc/systemd/system/treeline-"+tier+".service")
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		// systemd-analyze looks for programs on this machine only.
		text = bytes.ReplaceAll(text, []byte("=/usr/local/bin/"), []byte("="+into+"/usr/local/bin/"))
		if err := os.WriteFile(unit, text, 0o600); err != nil {
			t.Fatal(err)
		}
		units = append(units, unit)
	}
	out, err := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, units...)...).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "treeline-") {
			t.Error(strings.TrimSpace(line))
		}
	}
	if err != nil {
		t.Errorf("systemd-analyze: %v\n%s", err, out)
	}
}

func TestInstallPutsFilesInPlace(t *testing.T) {
	into := t.TempDir()
	install(t, into, "node", "a-token")
	env := filepath.Join(into, "etc/treeline/node.env")
	info, err := os.Stat(env)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file: %v, %v; want mode 600", info, err)
	}
	if text, _ := os.ReadFile(env); string(text) != "TREELINE_TOKEN=a-token\n" {
		t.Errorf("node.env contains %q, want the token", text)
	}

	// It may contain passwords of registries. An upgrade also restricts a file of an earlier release.
	config := filepath.Join(into, "etc/treeline/node.yaml")
	mode := func() os.FileMode {
		info, err := os.Stat(config)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if mode() != 0o600 {
		t.Errorf("the configuration has mode %o, want 600", mode())
	}
	if err := os.Chmod(config, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte("name: mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(env, 0o644); err != nil { // of an earlier release, too
		t.Fatal(err)
	}
	install(t, into, "node", "another")
	if info, err := os.Stat(env); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("after an upgrade the token's file: %v, %v; want mode 600", info, err)
	}
	if text, _ := os.ReadFile(config); string(text) != "name: mine\n" {
		t.Error("an upgrade overwrote the configuration")
	}
	if mode() != 0o600 {
		t.Errorf("after an upgrade the configuration has mode %o, want 600", mode())
	}

	run(t, true, "remove", "node", "--root", into)
	if text, err := os.ReadFile(filepath.Join(into, "etc/treeline/node.env")); err != nil || strings.Contains(string(text), "TOKEN") {
		t.Errorf("after the removal node.env contains %q (%v), want no token", text, err)
	}
	if _, err := os.Stat(filepath.Join(into, "usr/local/bin/node-engine")); !os.IsNotExist(err) {
		t.Errorf("the program still exists: %v", err)
	}
	if _, err := os.Stat(config); err != nil {
		t.Errorf("the removal deleted the configuration: %v", err)
	}
}

// TestNoTokenIsAnArgument checks documents, scripts and the messages of programs, because other users
// of a machine see the arguments of its processes.
func TestNoTokenIsAnArgument(t *testing.T) {
	argument := regexp.MustCompile(`--(operator-)?token[ =](["$A-Z][^ +]|%s)|(node-engine|orchestrator) join [^-]`)
	seen := 0
	for _, dir := range []string{"README.md", "docs", "scripts", "deploy", "cli", "root-orchestrator", "cluster-orchestrator", "node-engine", "netmanager"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			seen++
			for i, line := range strings.Split(string(text), "\n") {
				if argument.MatchString(line) {
					t.Errorf("%s:%d passes a token as an argument: %s", path, i+1, line)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 30 {
		t.Errorf("only %d files were checked, want at least 30", seen)
	}
}

// Installing a netmanager configures the node engine to use it, and removing it undoes that.
func TestInstallJoinsNodeAndNetwork(t *testing.T) {
	into := t.TempDir()
	install(t, into, "net", "")
	joint := filepath.Join(into, "etc/systemd/system/treeline-node.service.d/net.conf")
	socket := "TREELINE_NETMANAGER_SOCKET=" + net.Defaults().Socket + "\n"
	if text, err := os.ReadFile(joint); err != nil || !strings.Contains(string(text), socket) {
		t.Errorf("%s contains %q, %v; want the netmanager's socket", joint, text, err)
	}
	run(t, true, "remove", "net", "--root", into)
	if _, err := os.Stat(joint); !os.IsNotExist(err) {
		t.Errorf("the node engine is still configured for the netmanager: %v", err)
	}
}

func TestInstallRefuses(t *testing.T) {
	for name, args := range map[string][]string{
		"no tier":          {},
		"another tier":     {"leaf"},
		"no token":         {"node", "--root", t.TempDir(), "--bin", programsDir(t)},
		"no program":       {"root", "--root", t.TempDir(), "--bin", t.TempDir()},
		"an odd option":    {"root", "--rot", "x"},
		"a missing value":  {"root", "--root"},
		"remove what else": {"remove", "leaf"},
	} {
		if out := run(t, false, args...); out == "" {
			t.Errorf("%s: the script printed no error", name)
		}
	}
}

// install runs the install script for a directory.
func install(t *testing.T, into, tier, token string) {
	t.Helper()
	args := []string{tier, "--root", into, "--bin", programsDir(t)}
	if token != "" {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--token-file", file)
	}
	run(t, true, args...)
}

// programsDir returns a directory with an executable under each program's name.
func programsDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range programs {
		if err := os.WriteFile(filepath.Join(dir, p.name), []byte("#!/bin/sh\n"), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	return dir
}

func run(t *testing.T, want bool, args ...string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(shipped, "install"), args...).CombinedOutput()
	if ok := err == nil; ok != want {
		t.Errorf("install %v: %v, %s", args, err, out)
	}
	return string(out)
}
