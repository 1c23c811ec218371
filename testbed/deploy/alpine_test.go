package deploy

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/programtest"
)

// TestInstallScriptWithAFakeApk runs the parts of install.sh that install and remove containerd in busybox's shell, as
// on Alpine, with programs that only record their arguments in place of apk, rc-service and rc-update. Alpine itself is
// not tested.
func TestInstallScriptWithAFakeApk(t *testing.T) {
	t.Parallel()
	programtest.Need(t, "busybox")
	dir, bin := t.TempDir(), t.TempDir()
	script, err := os.ReadFile("../../deploy/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimSuffix(strings.TrimSpace(string(script)), `main "$@"`)
	for _, path := range []string{"/run/containerd", "/var/lib/containerd", "/usr/local/lib/treeline", "/usr/local/bin", "/etc/treeline", "/var/lib/treeline", "/run/treeline", "/var/log/treeline", "/etc/init.d", "/sys/fs/cgroup", "/etc/cni", "/opt/containerd"} {
		text = strings.ReplaceAll(text, path, dir+path)
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "etc/init.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	fake := func(name, text string) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\necho "+name+" \"$@\" >>"+dir+"/calls\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("busybox", "--install", "-s", bin).CombinedOutput()
	if err != nil {
		t.Fatalf("install busybox: %v\n%s", err, out)
	}
	for _, name := range []string{"apt-get", "dpkg"} {
		_ = os.Remove(filepath.Join(bin, name))
	}
	fake("apk", `case $1 in add) printf '#!/bin/sh\n' >`+bin+`/containerd && chmod +x `+bin+`/containerd && : >`+dir+`/etc/init.d/containerd;; esac`)
	fake("rc-update", `[ "$2" != show ]`)
	fake("rc-service", `[ "$3" != start ] || : >`+dir+`/started`)
	run := func(commands string) string {
		cmd := exec.Command("busybox", "sh", "-c", text+"\n"+commands)
		cmd.Env = []string{"PATH=" + bin, "HOME=" + dir}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", commands, err, out)
		}
		return string(out)
	}
	calls := func() string {
		text, _ := os.ReadFile(filepath.Join(dir, "calls"))
		_ = os.Remove(filepath.Join(dir, "calls"))
		return string(text)
	}
	if err := os.MkdirAll(filepath.Join(dir, "run/containerd"), 0o755); err != nil {
		t.Fatal(err)
	}
	go func() { // containerd
		for t.Context().Err() == nil {
			if _, err := os.Stat(filepath.Join(dir, "started")); err == nil {
				l, err := net.Listen("unix", filepath.Join(dir, "run/containerd/containerd.sock"))
				if err == nil {
					<-t.Context().Done()
					l.Close()
				}
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()

	said := run("mkdir -p $lib $etc; role=node containerd=yes init=openrc; containers")
	if got := calls(); !strings.Contains(said, "✔ containerd    runs") ||
		!strings.Contains(got, "apk add -q containerd runc\n") || !strings.Contains(got, "rc-update -q add containerd default\nrc-service -q containerd start\n") {
		t.Errorf("it prints\n%s\nand calls\n%s", said, got)
	}
	// Another program uses containerd meanwhile: it stays. Alpine has ctr in a package of its own.
	tasks := filepath.Join(dir, "run/containerd/io.containerd.runtime.v2.task")
	if err := os.MkdirAll(filepath.Join(tasks, "moby"), 0o755); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "usr/local/lib/treeline/*"))
	kept := map[string][]byte{}
	for _, f := range files {
		kept[f], _ = os.ReadFile(f)
	}
	run("init=openrc; remove_rest || true")
	if got := calls(); strings.Contains(got, "apk del") || strings.Contains(got, "stop") {
		t.Errorf("containerd is used by others, and it calls\n%s", got)
	}
	_ = os.RemoveAll(tasks)
	_ = os.MkdirAll(filepath.Join(dir, "usr/local/lib/treeline"), 0o755)
	for f, text := range kept {
		if err := os.WriteFile(f, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run("init=openrc; remove_rest || true")
	if got := calls(); !strings.Contains(got, "apk del -q containerd runc\n") || !strings.Contains(got, "rc-update -q delete containerd default\n") {
		t.Errorf("nobody uses containerd, and it calls\n%s", got)
	}
}
