package lab_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// A root from a bundle, a cluster and a node by the lines that it prints, each on a bare machine under
// a service manager, run an application. Runs that are killed are completed by the next one, repeated
// runs change nothing, and uninstalling leaves nothing.
func TestInstallationFromNothing(t *testing.T) {
	t.Parallel()
	t.Run("systemd", func(t *testing.T) { t.Parallel(); fromNothing(t, "systemd") })
	t.Run("openrc", func(t *testing.T) { t.Parallel(); fromNothing(t, "openrc") })
}

var installing = regexp.MustCompile(`^sh \S*/install\.sh `)

// services has the commands of a service manager.
var services = map[string]struct{ pid, restart string }{
	"systemd": {"systemctl show --value -p MainPID treeline-%", "systemctl restart treeline-%"},
	"openrc":  {"cat /run/supervise-treeline-%.pid", "rc-service treeline-% restart"},
}

func fromNothing(t *testing.T, init string) {
	programtest.Need(t, "systemctl", "openrc", "containerd", "runc", "curl", "busybox", "nsenter", "ip", "nft", "sysctl", "tar")
	l := open(t, lab.Options{})
	n := netlab.New(t)
	wan := n.Switch("wan")
	plugged := func(name, address string) *netlab.Host {
		h := n.Host(name)
		h.Plug(wan, "eth0", address+"/24")
		return h
	}
	root := l.Bare("first", lab.BareOptions{Init: init, Host: plugged("first", "203.0.113.1")})
	cluster := l.Bare("second", lab.BareOptions{Init: init, Host: plugged("second", "203.0.113.2")})
	node := l.Bare("third", lab.BareOptions{Init: init, Host: n.Site("home", netlab.PortRestricted, wan, "203.0.113.10/24", "192.168.1.0/24")})

	said, err := exec.Command(filepath.Join(l.InstallDir(), "treeline"), "bundle", filepath.Join(root.Root, "tmp", "treeline.tar")).CombinedOutput()
	if err != nil {
		t.Fatalf("treeline bundle: %v\n%s", err, said)
	}
	root.Run("cd /tmp && tar -xf treeline.tar && rm treeline.tar")

	uninstallRoot := install(t, root, init, "root", "sh /tmp/treeline/install.sh root --url https://203.0.113.1:7443", "var/lib/treeline/root/ca.pem")
	signIn := regexp.MustCompile(`treeline login .*`).FindString(root.Run("/usr/local/lib/treeline/install.sh root"))
	if signIn == "" {
		t.Fatal("the root's installation does not print how to sign in")
	}
	root.Run("echo 'a password that is long' | " + signIn + " --password-stdin")
	root.Run("treeline tenant create acme")
	// line returns the printed line that a command makes.
	line := func(command string) string {
		t.Helper()
		out := root.Run(command)
		found := regexp.MustCompile(`(?m)f=\$\(mktemp .*`).FindString(out)
		if found == "" {
			t.Fatalf("%s prints no line that installs:\n%s", command, out)
		}
		return found
	}
	join := line("treeline token create --cluster c1")
	uninstallCluster := install(t, cluster, init, "cluster", join, "var/lib/treeline/cluster/cluster.json")
	args, sla := "", ""
	if init == "systemd" {
		l.Images(filepath.Join(node.Root, "srv"))
		node.Write("etc/treeline/node.yaml", "containerd:\n  image_dirs: [/srv]\nmemory: 1024\ncpus: 1\n")
		web := l.Container("web", 1)
		web.Network = ""
		args, sla = " --containerd", string(lab.Encode(lab.App("shop", web)))
	} else {
		node.Write("etc/treeline/node.yaml", "process:\n  allow: ["+filepath.Dir(l.Program)+"]\nmemory: 1024\ncpus: 1\n")
		job := l.Process("web", 1)
		job.Network = "any"
		sla = string(lab.Encode(lab.App("shop", job)))
	}
	uninstallNode := install(t, node, init, "node", line("treeline token create --node --cluster c1")+args, "var/lib/treeline/node/node.json")
	root.Write("tmp/shop.json", sla)
	root.Run("treeline apply --tenant acme -f /tmp/shop.json")
	const workloads = `exec 2>/dev/null; for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline | grep -q '^[^ ]*/\(app\|workload\) sleep' && echo $p; done; :`
	var runs []string
	lab.Within(t, time.Minute, "one process runs", func() error { // it has its command line only after its exec
		if runs = strings.Fields(node.Run(workloads)); len(runs) != 1 {
			return fmt.Errorf("processes %q", runs)
		}
		return nil
	})
	for _, d := range []string{"node", "net"} {
		node.Run(strings.ReplaceAll(services[init].restart, "%", d))
	}
	node.Run("treeline doctor --machine --for node --wait 60s")
	if is := strings.Fields(node.Run(workloads)); !slices.Equal(is, runs) {
		t.Errorf("after a restart of the daemons the workload is %q, was %q", is, runs)
	}

	uninstallNode("etc/treeline/node.yaml", "etc/treeline")
	uninstallCluster()
	root.Run("rm -r /root/.config") // where the CLI keeps its session
	uninstallRoot()
}

// install runs the line until a machine has its role, and returns what uninstalls it. Runs are killed
// first, until the file joined exists.
func install(t *testing.T, b *lab.Bare, init, role, line, joined string) (uninstall func(except ...string)) {
	t.Helper()
	before := b.Traces()
	cuts := 0
	for _, file := range []string{"usr/local/lib/treeline/linux-*/treeline", joined} {
		if b.Cut(line+" >/tmp/killed.log 2>&1", file, installing) {
			cuts++
		}
	}
	if cuts == 0 {
		t.Error("no run was killed before its end")
	}
	began := time.Now()
	out := b.Run(line)
	t.Logf("%s under %s, after %s:\n%s", role, init, time.Since(began).Round(time.Millisecond), out)
	for _, step := range []string{"programs", "service", role} {
		if !regexp.MustCompile(`(?m)^✔ ` + step + ` `).MatchString(out) {
			t.Errorf("the output has no line ✔ %s", step)
		}
	}
	if !strings.Contains(out, init+" runs ") {
		t.Errorf("the service manager is not %s", init)
	}
	pid := strings.ReplaceAll(services[init].pid, "%", role)
	was := b.Run(pid)
	again := b.Run("/usr/local/lib/treeline/install.sh " + role)
	if is := b.Run(pid); is != was {
		t.Errorf("the second run started the %s again: process %q, was %q\n%s", role, is, was, again)
	}
	return func(except ...string) {
		t.Helper()
		out := b.Run("/usr/local/lib/treeline/install.sh uninstall --yes")
		clean(t, b, before, out, except...)
	}
}
