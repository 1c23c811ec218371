package docs

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/store/mongo/mongotest"
	"github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// systemctl replaces systemd: it starts and stops one root orchestrator.
const systemctl = `#!/bin/sh
set -eu
cd %[1]s
case $1 in
start)
	rm -f %[2]s/address
	setsid ./root-orchestrator --data %[2]s --listen 127.0.0.1:0 >>log 2>&1 </dev/null &
	echo $! >pid
	for _ in $(seq 600); do
		[ ! -s %[2]s/address ] || exit 0
		kill -0 "$(cat pid)" || { cat log; exit 1; }
		sleep 0.1
	done
	exit 1
	;;
stop)
	[ -s pid ] || exit 0
	kill "$(cat pid)" || true
	# A process that nobody reaps has ended, too.
	while grep -q '^State:.[^ZX]' "/proc/$(cat pid)/status" 2>/dev/null; do sleep 0.05; done
	rm pid
	;;
esac
`

// TestBackupAsDocumented saves a root with the commands of docs/how-to/backup.md, changes it, and
// restores it with the commands there, below a directory that replaces /.
func TestBackupAsDocumented(t *testing.T) {
	t.Parallel()
	machine := t.TempDir()
	data := filepath.Join(machine, "var/lib/treeline/root")
	for _, dir := range []string{data, filepath.Join(machine, "etc/treeline")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, build := range [][2]string{{"root-orchestrator", "../../root-orchestrator"}, {"treeline", "../../cli"}} {
		if out, err := exec.Command("go", "build", "-ldflags=-w", "-o", filepath.Join(machine, build[0]), build[1]).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	shim := filepath.Join(machine, "systemctl")
	if err := os.WriteFile(shim, fmt.Appendf(nil, systemctl, machine, data), 0o700); err != nil {
		t.Fatal(err)
	}
	var session api.Session
	run := func(commands string) {
		t.Helper()
		cmd := exec.Command("bash", "-euxo", "pipefail", "-c", commands)
		cmd.Env = append(os.Environ(), "PATH="+machine+":"+os.Getenv("PATH"), "HOME="+machine)
		if session.Access != "" {
			cmd.Env = append(cmd.Env, "TREELINE_ADDR=https://"+text(t, data, wiring.AddressFile), "TREELINE_CA="+filepath.Join(data, wiring.CAFile), "TREELINE_TOKEN="+session.Access)
		}
		if out, err := output(cmd); err != nil {
			t.Fatalf("%s\n%v\n%s", commands, err, out)
		}
	}
	t.Cleanup(func() { run("systemctl stop treeline-root") })
	run("systemctl start treeline-root")

	connect := func(tokens client.Tokens) *client.Client {
		t.Helper()
		c, err := client.New(client.Options{
			URL: "https://" + text(t, data, wiring.AddressFile), CA: []byte(text(t, data, wiring.CAFile)), Tokens: tokens,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	tenants := func() (names []string) {
		t.Helper()
		var page api.Page[struct{ Path string }]
		if _, err := connect(client.Static(session.Access)).Do(t.Context(), client.Request{Method: http.MethodGet, Path: "/v1/tenants"}, &page); err != nil {
			t.Fatalf("use the session from before the restore: %v", err)
		}
		for _, p := range page.Items {
			names = append(names, p.Path)
		}
		return names
	}
	create := func(name api.Tenant) {
		t.Helper()
		if err := connect(client.Static(session.Access)).CreateTenant(t.Context(), name, ""); err != nil {
			t.Fatal(err)
		}
	}
	user, code, _ := strings.Cut(text(t, data, wiring.SignInFile), " ")
	session, err := connect(nil).Redeem(t.Context(), api.Redeem{User: user, Code: code, Password: "correct horse battery"})
	if err != nil {
		t.Fatal(err)
	}
	create("before")
	ca := text(t, data, wiring.CAFile)
	blocks, err := Blocks(top, "docs/how-to/backup.md")
	if err != nil {
		t.Fatal(err)
	}
	// scheduled restarts the root with the recipient of the block before.
	scheduled := func() {
		t.Helper()
		recipient := regexp.MustCompile(`age1\w+`).FindString(text(t, machine, "snapshots.key"))
		if err := os.Mkdir(filepath.Join(machine, "backups"), 0o700); err != nil {
			t.Fatal(err)
		}
		run(fmt.Sprintf("systemctl stop treeline-root\nTREELINE_SNAPSHOT_RECIPIENTS=%s TREELINE_SNAPSHOT_SCHEDULE=@yearly TREELINE_SNAPSHOT_TO=%s/backups systemctl start treeline-root", recipient, machine))
	}
	// toMongo restores into a database, and starts the root with it.
	toMongo := func(commands string) {
		t.Helper()
		uri := mongotest.URI(t)
		t.Cleanup(func() { // before the database
			run("systemctl stop treeline-root")
			session.Access = ""
		})
		if err := os.WriteFile(filepath.Join(machine, "mongodb-uri"), []byte(uri+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		run(commands + "TREELINE_STORE='" + uri + "' systemctl start treeline-root")
		if _, err := os.Stat(filepath.Join(data, "root.db")); !os.IsNotExist(err) {
			t.Errorf("the data directory has a store besides the database: %v", err)
		}
	}
	ran := 0
	for _, b := range blocks {
		switch b.Info {
		case "sh backup", "sh restore", "sh accept":
		case "sh of TestBackupAsDocumented":
			if !strings.Contains(b.Text, "--store-file") {
				scheduled()
			}
		default:
			continue
		}
		commands := strings.NewReplacer(" /root/", " "+machine+"/", " /var/", " "+machine+"/var/").Replace(b.Text)
		if ran++; b.Info == "sh restore" {
			create("after")
		}
		switch {
		case !strings.Contains(b.Text, "--store-file"):
			run(commands)
		case mongotest.Available():
			toMongo(commands)
		default:
			t.Log("not restored into MongoDB, because there is none")
		}
	}
	if ran != 5 {
		t.Fatalf("docs/how-to/backup.md has %d blocks about backups, want 5", ran)
	}
	if found, err := filepath.Glob(filepath.Join(machine, "backups", "root-*.snapshot")); err != nil || len(found) != 1 {
		t.Errorf("the directory of scheduled snapshots has %v, %v, want one", found, err)
	}
	if have := tenants(); !slices.Contains(have, "before") || slices.Contains(have, "after") {
		t.Errorf("the restored root has the tenants %q, want before and not after", have)
	}
	if text(t, data, wiring.CAFile) != ca {
		t.Error("the restored root has a different CA, want that of the backup")
	}
}

func text(t *testing.T, dir, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}
