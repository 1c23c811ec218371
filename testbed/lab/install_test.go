package lab_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// joinTime is how long the printed line may take, with programs and images on the local network.
const joinTime = 30 * time.Second

// The line that `treeline token create` prints makes a bare machine behind a NAT a node that runs
// containers. A second run changes nothing, and uninstalling leaves nothing.
func TestPrintedLineJoinsABareMachine(t *testing.T) {
	t.Parallel()
	programtest.Need(t, "containerd", "runc", "curl", "nsenter", "ip", "nft", "sysctl")
	l := open(t, lab.Options{})
	n := netlab.New(t)
	wan := n.Switch("wan")
	host := n.Host("c1")
	host.Plug(wan, "eth0", "203.0.113.1/24")
	c1 := l.Cluster("c1", lab.ClusterOptions{Host: host, Address: "203.0.113.1", Args: []string{"--install-dir", l.InstallDir(), "--dead", "30s"}})

	bare := l.Bare("bare", lab.BareOptions{Host: n.Site("home", netlab.PortRestricted, wan, "203.0.113.10/24", "192.168.1.0/24")})
	l.Images(filepath.Join(bare.Root, "srv"))
	bare.Write("etc/treeline/node.yaml", "containerd:\n  image_dirs: [/srv]\nmemory: 1024\ncpus: 1\n")
	before := bare.Traces()
	line := joinLine(t, l, c1, 1)

	began := time.Now()
	out := bare.Run(line + " --containerd")
	took := time.Since(began)
	l.Measured("join_bare_machine", took)
	t.Logf("after %s:\n%s", took, out)
	if took > joinTime {
		t.Errorf("the printed line took %s, want at most %s", took, joinTime)
	}
	for _, step := range []string{"programs", "kernel", "tun", "server", "clock", "containerd", "joined", "service", "net", "node"} {
		if !regexp.MustCompile(`(?m)^✔ ` + step + ` `).MatchString(out) {
			t.Errorf("the output has no line ✔ %s", step)
		}
	}
	l.Wait("the node takes work", lab.Nodes("c1", 1))
	web := l.Container("web", 1)
	web.Network = ""
	l.Apply(lab.App("shop", web))
	l.Wait("it runs on the machine", l.Running("shop", "web", 1))

	daemons := strings.TrimSpace(bare.Run("cat /run/treeline/node.pid /run/treeline/net.pid"))
	if out := bare.Run("/usr/local/lib/treeline/install.sh node"); !strings.Contains(out, "is installed") {
		t.Errorf("the second run prints\n%s", out)
	}
	if again := strings.TrimSpace(bare.Run("cat /run/treeline/node.pid /run/treeline/net.pid")); again != daemons {
		t.Errorf("the second run started daemons again: %q, was %q", again, daemons)
	}
	if !l.Workload(l.ID("shop", "web", 0)).Alive() {
		t.Error("the second run ended the workload")
	}

	out = bare.Run("/usr/local/lib/treeline/install.sh uninstall --yes")
	if !strings.Contains(out, "✔ uninstalled") {
		t.Errorf("uninstall prints\n%s", out)
	}
	clean(t, bare, before, out, "etc/treeline/node.yaml", "etc/treeline")
	l.Wait("the cluster has removed the node", lab.Nodes("c1", 0))
}

// joinLine returns the printed line for a node of the cluster.
func joinLine(t *testing.T, l *lab.Lab, c *lab.Cluster, uses int) string {
	t.Helper()
	tok, err := l.API.CreateJoinToken(l.Context(), api.TokenRequest{Kind: "node", Cluster: c.ID, Uses: uses})
	if err != nil {
		t.Fatal(err)
	}
	line, err := tok.JoinCommand()
	if err != nil || line != tok.Command || tok.Install == nil {
		t.Fatalf("the token's command is %q (install %+v), want %q: %v", tok.Command, tok.Install, line, err)
	}
	return line
}

// clean waits until the machine is as it was before, apart from the files that are named.
func clean(t *testing.T, b *lab.Bare, before []string, said string, except ...string) {
	t.Helper()
	lab.Within(t, time.Minute, "nothing is left\n"+said, func() error { // processes take a moment to end
		var more, less []string
		now := b.Traces()
		for _, is := range now {
			if !slices.Contains(before, is) {
				more = append(more, is)
			}
		}
		for _, was := range before {
			if !slices.Contains(now, was) && !slices.Contains(except, strings.TrimPrefix(was, "file /")) {
				less = append(less, was)
			}
		}
		if len(more)+len(less) > 0 {
			return fmt.Errorf("left: %s; missing: %s", strings.Join(more, ", "), strings.Join(less, ", "))
		}
		return nil
	})
}

// Runs that fail name the cause and the fix, and leave nothing; runs that are killed are completed
// by the next one. The machine has busybox only, and gets everything from a bundle.
func TestFailedInstallationsLeaveNothing(t *testing.T) {
	t.Parallel()
	programtest.Need(t, "busybox", "nsenter", "tar", "ip", "nft", "sysctl")
	l := open(t, lab.Options{})
	n := netlab.New(t)
	wan := n.Switch("wan")
	host := n.Host("c1")
	host.Plug(wan, "eth0", "203.0.113.1/24")
	release := l.InstallDir()
	c1 := l.Cluster("c1", lab.ClusterOptions{Host: host, Address: "203.0.113.1", Args: []string{"--install-dir", release, "--dead", "30s"}})
	bare := l.Bare("bare", lab.BareOptions{Host: n.Site("home", netlab.Symmetric, wan, "203.0.113.10/24", "192.168.1.0/24"), Busybox: true})

	bundle := filepath.Join(bare.Root, "tmp", "treeline.tar")
	said, err := exec.Command(filepath.Join(release, "treeline"), "bundle", bundle).CombinedOutput()
	if err != nil {
		t.Fatalf("treeline bundle: %v\n%s", err, said)
	}
	text, err := os.ReadFile(bundle)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(text); !strings.Contains(string(said), hex.EncodeToString(sum[:])) {
		t.Errorf("treeline bundle prints %s, want the archive's SHA-256 %x", said, sum)
	}
	bare.Run("cd /tmp && tar -xf treeline.tar && rm treeline.tar && cd treeline && sha256sum -c SHA256SUMS")
	bare.Write("etc/treeline/node.yaml", "process:\n  allow: ["+filepath.Dir(l.Program)+"]\nmemory: 1024\ncpus: 1\n")
	before := bare.Traces()

	token := func(uses int) string {
		tok, err := l.API.CreateJoinToken(l.Context(), api.TokenRequest{Kind: "node", Cluster: "c1", Uses: uses})
		if err != nil {
			t.Fatal(err)
		}
		return tok.Token
	}
	with := func(token string) string {
		return "echo " + token + " | sh /tmp/treeline/install.sh node --token-file -"
	}
	fails := func(t *testing.T, line string, says ...string) {
		t.Helper()
		out, err := bare.Try(line)
		if err == nil {
			t.Fatalf("it succeeded:\n%s", out)
		}
		for _, want := range says {
			if !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("it prints\n%s\nwant %q", out, want)
			}
		}
		clean(t, bare, before, out)
	}

	good := token(1)
	tok, err := jointoken.Parse(good)
	if err != nil {
		t.Fatal(err)
	}
	tok.Secret[0]++
	sub(t, l, "no token", func(t *testing.T) {
		fails(t, "sh /tmp/treeline/install.sh node", `✗ token +a node needs a join token`, "fix:")
	})
	sub(t, l, "a damaged token", func(t *testing.T) { fails(t, with(good[:len(good)-9]), "join token is damaged") })
	sub(t, l, "a wrong token", func(t *testing.T) { fails(t, with(tok.Line()), "unknown, used up, expired or revoked", "✗ join") })
	sub(t, l, "a tampered program", func(t *testing.T) {
		bare.Run("cp -r /tmp/treeline /tmp/bad && for p in /tmp/bad/linux-*/netmanager; do echo more >>$p; done")
		fails(t, strings.Replace(with(good), "/tmp/treeline/", "/tmp/bad/", 1), `netmanager from /tmp/bad is not the file of this release`, "fix:")
		bare.Run("rm -r /tmp/bad")
	})
	sub(t, l, "a tampered script", func(t *testing.T) {
		line := joinLine(t, l, c1, 1)
		line = strings.Replace(line, "{ curl", "{ echo 'echo evil' >$f; true || curl", 1)
		out, err := bare.Try(line)
		if err == nil || !strings.Contains(out, "FAILED") || strings.Contains(out, "evil") {
			t.Errorf("%v: %s", err, out)
		}
		clean(t, bare, before, out)
	})
	sub(t, l, "a full disk", func(t *testing.T) {
		bare.Run("mount -t tmpfs -o size=100m tmpfs /usr/local")
		fails(t, with(good), `✗ disk +/usr/local/lib/treeline needs [0-9]+ MiB, free are [0-9]+ MiB`, "fix: free some space")
		bare.Run("umount /usr/local")
	})

	sub(t, l, "killed at any time", func(t *testing.T) {
		cuts := 0
		for _, file := range []string{
			"usr/local/lib/treeline/.new", "usr/local/lib/treeline/linux-*/node-engine", "var/lib/treeline/node", "var/lib/treeline/node/node.json",
		} {
			if bare.Cut(with(good), file, installing) {
				cuts++
			}
			lab.Within(t, time.Minute, "the engine that joins has ended", func() error {
				if left := bare.Processes(regexp.MustCompile(`node-engine join`)); len(left) > 0 {
					return fmt.Errorf("left: processes %d", left)
				}
				return nil
			})
		}
		if cuts == 0 {
			t.Error("no run was killed before its end")
		}
		out := bare.Run(with(good)) // the same use of the token
		l.Wait("the node takes work", lab.Nodes("c1", 1))
		job := l.Process("job", 1)
		job.Network = api.NetworkAny
		l.Apply(lab.App("shop", job))
		l.Wait("it runs on the machine", l.Running("shop", "job", 1))

		bare.Run("/usr/local/lib/treeline/install.sh stop && /usr/local/lib/treeline/install.sh start")
		lab.Within(t, time.Minute, "the engine is back", func() error {
			_, err := bare.Try("treeline doctor --machine --wait 1s")
			return err
		})
		if !l.Workload(l.ID("shop", "job", 0)).Alive() {
			t.Error("stopping the daemons ended the workload")
		}
		out += bare.Run("/usr/local/lib/treeline/install.sh uninstall --yes")
		clean(t, bare, before, out, "etc/treeline/node.yaml", "etc/treeline")
		l.Wait("the cluster has removed the node", lab.Nodes("c1", 0))
	})
	sub(t, l, "a used token", func(t *testing.T) {
		before = bare.Traces()
		fails(t, with(good), "unknown, used up, expired or revoked")
	})
}
