package docs

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/programtest"
)

// commandTime bounds one script or the commands of one document.
const commandTime = 8 * time.Minute

// TestUpCommandsDown starts an installation with scripts/up, twice, runs every command of the
// documents on it, and removes it.
func TestUpCommandsDown(t *testing.T) {
	t.Parallel()
	dir, state := stateDir(t)
	down := func() string { return script(t, "down", state) }
	t.Cleanup(func() { down() })

	script(t, "up", state)
	if said := script(t, "up", state); !strings.Contains(said, "found it up") {
		t.Errorf("the second scripts/up does not report that the installation is up:\n%s", said)
	}
	reader := newReader(t, dir, state)
	files, err := Documents(top)
	if err != nil {
		t.Fatal(err)
	}
	local := registry(t)
	for _, file := range files {
		blocks, err := Blocks(top, file)
		if err != nil {
			t.Fatal(err)
		}
		if commands := strings.ReplaceAll(program(blocks), "registry.example.org/", "--plain-http "+local+"/"); commands != "" {
			t.Run(file, func(t *testing.T) { reader.run(t, commands) })
		}
	}
	down()
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("scripts/down left %s: %v", state, err)
	}
	if said := down(); !strings.Contains(said, "nothing is up") {
		t.Errorf("the second scripts/down printed %s, want that nothing is up", said)
	}
	noneLeft(t, dir)
}

// TestUpWithReplicas starts an installation with replicas and the example shop, kills the active root and the active
// replica of the cluster, and removes it.
func TestUpWithReplicas(t *testing.T) {
	t.Parallel()
	dir, state := stateDir(t)
	t.Cleanup(func() { script(t, "down", state) })
	script(t, "up", state, "--example", "shop", "--ha")
	killReplicas(t, state, "root", "c1")
	for _, command := range [][]string{{"scale", "shop/web", "3"}, {"wait", "shop", "--timeout", "3m"}} {
		if out, err := treeline(state, command...); err != nil {
			t.Errorf("%q after kill -9 of root and c1: %v\n%s", command, err, out)
		}
	}
	script(t, "down", state)
	noneLeft(t, dir)
}

// stateDir returns a new directory, and the path of the state of scripts/up in it. Without root, the test is skipped.
func stateDir(t *testing.T) (dir, state string) {
	t.Helper()
	if os.Geteuid() != 0 {
		const reason = "scripts/up runs containers, as root alone"
		if os.Getenv("TREELINE_TEST_REQUIRE") == "1" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir, filepath.Join(dir, "state")
}

// noneLeft waits until no process has the directory in its command line.
func noneLeft(t *testing.T, dir string) {
	t.Helper()
	left := leftBehind(dir)
	for end := time.Now().Add(time.Minute); len(left) > 0 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		left = leftBehind(dir) // processes may take a moment to end
	}
	for _, l := range left {
		t.Errorf("leftover process: %s", l)
	}
}

// registry starts an OCI registry without TLS and returns its address, which stands for registry.example.org/ in the documents.
func registry(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	programtest.Need(t, "docker-registry", "mosquitto_passwd")
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "registry.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", filepath.Join(dir, "registry"), addr)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("docker-registry", "serve", config)
	said, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			return addr
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(said.Name())
			t.Fatalf("docker-registry does not listen on %s: %v\n%s", addr, err, text)
		}
	}
}

// script runs scripts/NAME and returns its output.
func script(t *testing.T, name, state string, args ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(top, "scripts", name))
	if err != nil {
		t.Fatal(err)
	}
	out, err := output(exec.Command(path, append(args, "--state", state)...))
	if err != nil {
		t.Fatalf("scripts/%s: %v\n%s", name, err, out)
	}
	return out
}

// output runs a command without a terminal and returns its output. It uses a file, because daemons
// that a script starts would keep a pipe open.
func output(cmd *exec.Cmd) (string, error) {
	file, err := os.CreateTemp("", "output-")
	if err != nil {
		return "", err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	if err = cmd.Start(); err == nil {
		stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
		err = cmd.Wait()
		stop()
	}
	text, _ := os.ReadFile(file.Name())
	return string(text), err
}

// program returns a document's commands as one script. Each line is printed before it runs; one that
// ends with "# refused" must fail.
func program(blocks []Block) string {
	var b strings.Builder
	for _, block := range blocks {
		if block.Info != "sh test" {
			continue
		}
		fmt.Fprintf(&b, "echo '@@ %s'\n", block)
		for line := range strings.Lines(block.Text) {
			line = strings.TrimRight(line, "\n")
			if command, ok := strings.CutSuffix(line, "# refused"); ok {
				line = fmt.Sprintf("if %s; then echo 'this was to be refused'; exit 1; fi", strings.TrimSpace(command))
			}
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// reader runs the commands of documents in a copy of the checkout, in which deploy/install does not
// change the machine.
type reader struct {
	dir string
	env []string
}

func newReader(t *testing.T, dir, state string) *reader {
	t.Helper()
	from, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{dir: filepath.Join(dir, "checkout")}
	prepare := fmt.Sprintf(`
mkdir -p %[2]s/.path
tar -C %[1]s --exclude=./.git --exclude=./.treeline -c . | tar -C %[2]s -x
ln -s %[3]s %[2]s/.treeline
cp %[3]s/hello.yaml %[2]s/deploy/examples/hello.yaml
mv %[2]s/deploy/install %[2]s/deploy/install.real
printf '#!/bin/sh\nexec "$(dirname "$0")"/install.real "$@" --root %[4]s\n' >%[2]s/deploy/install
chmod +x %[2]s/deploy/install
ln -s %[2]s/bin/* %[2]s/.path/
`, from, r.dir, state, filepath.Join(dir, "machine"))
	if out, err := exec.Command("bash", "-euc", prepare).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r.env = append(os.Environ(), "PATH="+filepath.Join(r.dir, ".path")+":"+os.Getenv("PATH"))
	return r
}

func (r *reader) run(t *testing.T, commands string) {
	t.Helper()
	// Every document starts with the state after scripts/up.
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", "treeline apply -f deploy/examples/hello.yaml >/dev/null 2>&1\nset -x\n"+commands)
	cmd.Dir, cmd.Env = r.dir, r.env
	if out, err := output(cmd); err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if testing.Verbose() {
		t.Log(out)
	}
}

// killReplicas ends the daemons of these names, which started first and are active, and waits until the nodes are shown again.
func killReplicas(t *testing.T, state string, names ...string) {
	t.Helper()
	for _, name := range names {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		i := slices.IndexFunc(lines, func(path string) bool {
			text, _ := os.ReadFile(path)
			args := strings.Split(string(text), "\x00")
			return strings.HasSuffix(args[0], "-orchestrator") && slices.Contains(args, filepath.Join(state, "dev", name))
		})
		if i < 0 {
			t.Fatalf("%s does not run", name)
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(lines[i])))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			t.Fatalf("kill %s: %v", name, err)
		}
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		out, err := treeline(state, "get", "nodes")
		if err == nil && strings.Count(out, "ready") == 3 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after kill -9 of %q, the nodes are not shown: %v\n%s", names, err, out)
		}
	}
}

// treeline runs a command in the context of scripts/up.
func treeline(state string, args ...string) (string, error) {
	args = append([]string{"--config", filepath.Join(state, "config.yaml"), "--context", "up"}, args...)
	return output(exec.Command(filepath.Join(top, "bin", "treeline"), args...))
}

// leftBehind returns the processes with the directory in their command line.
func leftBehind(dir string) []string {
	var left []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), dir+"/") {
			left = append(left, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return left
}
