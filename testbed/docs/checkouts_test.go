package docs

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/programtest"
)

// oakestra is a document like Oakestra's examples, with their usual requirements, except for the
// image.
const oakestra = `{"sla_version":"v2.0","customerID":"Admin","applications":[{"applicationID":"","application_name":"clientsrvr",
"application_namespace":"test","application_desc":"Simple demo","microservices":[{"microserviceID":"","microservice_name":"nginx",
"microservice_namespace":"test","virtualization":"container","cmd":[],"memory":100,"vcpus":1,"vgpus":0,"vtpus":0,
"bandwidth_in":0,"bandwidth_out":0,"storage":0,"code":"treeline.local/hello:1","state":"","port":"","added_files":[]}]}]}`

// checkout is a copy of the sources, and the environment of its user.
type checkout struct {
	dir string
	env []string
}

// copyCheckouts copies the sources for one user, whose home is in the same directory.
func copyCheckouts(t *testing.T, names ...string) (all []checkout, home string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	from, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	home = filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME=")
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOFLAGS", "GOPROXY", "GOSUMDB", "GOTOOLCHAIN"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+strings.TrimSpace(string(value)))
	}
	for _, name := range names {
		to := filepath.Join(dir, name)
		copied := fmt.Sprintf("mkdir %[2]s && tar -C %[1]s --exclude=./.git --exclude=./.treeline --exclude=./bin -c . | tar -C %[2]s -x", from, to)
		if out, err := exec.Command("bash", "-euo", "pipefail", "-c", copied).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		all = append(all, checkout{to, env})
	}
	return all, home
}

// sh runs commands in the checkout with its bin in PATH, as in the README.
func (c checkout) sh(t *testing.T, commands string) string {
	t.Helper()
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", "export PATH=$PWD/bin:$PATH\n"+commands)
	cmd.Dir, cmd.Env = c.dir, c.env
	out, err := output(cmd)
	if err != nil {
		t.Errorf("%s: %s: %v\n%s", filepath.Base(c.dir), commands, err, out)
	}
	return out
}

// made returns the objects on the machine that the checkout's installation has listed.
func (c checkout) made(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, ".treeline", "dev", "network"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// there returns those of the objects that exist.
func there(parts []string) (found []string) {
	for _, part := range parts {
		kind, what, _ := strings.Cut(part, " ")
		path := map[string]string{"netns": "/run/netns/", "link": "/sys/class/net/", "forwarding": "/run/treeline-dev/forwarding-for-"}[kind]
		if path != "" {
			if _, err := os.Lstat(path + what); err == nil {
				found = append(found, part)
			}
		} else if exec.Command("nft", "list", "table", "ip", what).Run() == nil {
			found = append(found, part)
		}
	}
	return found
}

// TestTwoCheckoutsAtOnce starts an installation in each of two checkouts at the same time, uses both
// without flags, and removes one while the other runs.
func TestTwoCheckoutsAtOnce(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		const reason = "scripts/up runs containers, as root alone"
		if os.Getenv("TREELINE_TEST_REQUIRE") == "1" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	programtest.Need(t, "ip", "nft", "containerd", "ctr", "runc")
	all, home := copyCheckouts(t, "one", "two")
	one, two := all[0], all[1]

	// The user is signed in elsewhere, in a context of the same name.
	own := filepath.Join(home, ".config", "treeline", "config.yaml")
	const contexts = "current: up\ncontexts:\n  up:\n    url: https://production.example:7443\n    user: acme/alice\n"
	if err := os.MkdirAll(filepath.Dir(own), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, []byte(contexts), 0o600); err != nil {
		t.Fatal(err)
	}

	said := make([]string, len(all))
	var ups sync.WaitGroup
	for i, c := range all {
		t.Cleanup(func() { c.sh(t, "scripts/down") })
		ups.Go(func() { said[i] = c.sh(t, "scripts/up") })
	}
	if ups.Wait(); t.Failed() {
		t.FailNow()
	}
	url := regexp.MustCompile(`https://\S+/v1/docs`)
	if a, b := url.FindString(said[0]), url.FindString(said[1]); a == "" || a == b {
		t.Errorf("the installations have the addresses %q and %q", a, b)
	}
	parts := [][]string{one.made(t), two.made(t)}
	for i, p := range parts {
		if len(there(p)) != len(p) {
			t.Errorf("installation %d lists the objects %q, of which only %q exist", i+1, p, there(p))
		}
	}

	// Each command addresses the installation of its checkout.
	const fronts = "treeline get instances hello -o name | grep -c '\\.front\\.'"
	one.sh(t, "treeline scale hello/front 3 && treeline wait hello")
	if a, b := strings.TrimSpace(one.sh(t, fronts)), strings.TrimSpace(two.sh(t, fronts)); a != "3" || b != "2" {
		t.Errorf("after scaling the first installation there are %s and %s fronts, want 3 and 2", a, b)
	}
	// A document of Oakestra that requests a whole vCPU fits in addition to them.
	if err := os.WriteFile(filepath.Join(one.dir, "oakestra.json"), []byte(oakestra), 0o600); err != nil {
		t.Fatal(err)
	}
	one.sh(t, "treeline apply -f oakestra.json --timeout 60s && treeline wait clientsrvr --timeout 60s")

	one.sh(t, "scripts/down")
	if left := there(parts[0]); len(left) > 0 {
		t.Errorf("scripts/down left %q", left)
	}
	if have := there(parts[1]); len(have) != len(parts[1]) {
		t.Errorf("after scripts/down of the first checkout, of the second's objects %q only %q exist", parts[1], have)
	}
	if text, _ := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); strings.TrimSpace(string(text)) != "1" {
		t.Error("scripts/down of the first checkout turned forwarding off, which the second needs")
	}
	if got := strings.TrimSpace(two.sh(t, "treeline wait hello >/dev/null && "+fronts)); got != "2" {
		t.Errorf("after scripts/down of the first checkout, the second has %s fronts, want 2", got)
	}
	answers(t, said[1])
	two.sh(t, "scripts/down")
	if left := there(parts[1]); len(left) > 0 {
		t.Errorf("scripts/down left %q", left)
	}
	if text, err := os.ReadFile(own); err != nil || string(text) != contexts {
		t.Errorf("the user's own contexts have changed: %v\n%s", err, text)
	}
}

// answers calls each front that scripts/up has printed.
func answers(t *testing.T, said string) {
	t.Helper()
	urls := regexp.MustCompile(`(?m)^hello/front#\d+ +(http://\S+)$`).FindAllStringSubmatch(said, -1)
	if len(urls) != 2 {
		t.Fatalf("scripts/up printed %d fronts:\n%s", len(urls), said)
	}
	client := http.Client{Timeout: 20 * time.Second}
	for _, m := range urls {
		answer, err := client.Get(m[1])
		if err != nil {
			t.Errorf("call %s: %v", m[1], err)
			continue
		}
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
		answer.Body.Close()
		if !strings.Contains(string(text), ".front.demo#") {
			t.Errorf("%s answered %s, want the name of a front", m[1], text)
		}
	}
}

// TestDownEndsShims starts processes that look like shims of containerd: only those of the namespace and of the
// containerd are ended.
func TestDownEndsShims(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	start := func(name, namespace, socket string) *exec.Cmd {
		path := filepath.Join(dir, name)
		if err := os.Symlink(bash, path); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
		cmd := exec.Command(path, "-c", "read -r line", "shim", "-namespace", namespace, "-id", "a", "-address", filepath.Join(dir, socket))
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Close() })
		return cmd
	}
	ended := start("containerd-shim-t", "ours", "c.sock")
	others := []*exec.Cmd{start("containerd-shim-t", "theirs", "c.sock"), start("containerd-shim-t", "ours", "d.sock"), start("other", "ours", "c.sock")}
	down := exec.Command(bash, "-euo", "pipefail", "-c", ". scripts/lib.sh; . scripts/lib-up.sh; containerd_socket=$1; end_shims ours; end_shims none", "-", filepath.Join(dir, "c.sock"))
	down.Dir = top
	if out, err := down.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for i, cmd := range append(others, ended) {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err == nil || (err.Error() == "signal: killed") != (i == len(others)) {
			t.Errorf("%q: %v, want only that of the namespace and the address killed", cmd.Args, err)
		}
	}
}
