package lab_test

import (
	"encoding/pem"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/remote"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestSnapshotsOfVolumesThroughTheTiers copies a volume to a file and to gofakes3, an S3-compatible server, and
// restores it. The engine is killed in the middle of both.
func TestSnapshotsOfVolumesThroughTheTiers(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	c := l.Cluster("munich", lab.ClusterOptions{})
	node := c.Node("n1", containers(t))
	l.Wait("the node takes work", lab.Nodes("munich", 1))
	db := l.Container("db", 1)
	db.Cmd = []string{"/app", "journal", "/data/pages"}
	db.Volumes = []api.Volume{{Name: "pages", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 32}}
	l.Apply(lab.App("shop", db))
	l.Wait("db runs", l.Running("shop", "db", 1))
	id := l.ID("shop", "db", 0).Volume("pages")
	volumes := filepath.Join(node.Data, "volumes")
	at := func() string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(volumes, "*", "mnt", "data"))
		if err != nil || len(found) != 1 {
			t.Fatalf("volumes: got %v, %v, want one", found, err)
		}
		return found[0]
	}
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(at(), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	large := strings.Repeat("0123456789abcdef", 1<<20) // more than the buffers of the stream
	put("large", large)
	put("note", "one")
	file := filepath.Join(t.TempDir(), "pages.snapshot")
	l.CLI("snapshot", "volume", "shop/db#0:pages", "--to", file)
	put("note", "two")
	if out, err := l.TryCLI("restore", "volume", "shop/db#0:pages", "--from", file, "--yes"); err == nil || !strings.Contains(out+err.Error(), "treeline scale") {
		t.Errorf("restore a volume in use: got %v\n%s", err, out)
	}

	// killed ends the engine in the middle of a copy, and starts it again.
	killed := func(reached <-chan struct{}, goOn func(), result <-chan error) {
		t.Helper()
		<-reached
		node.Kill9()
		goOn()
		select {
		case err := <-result:
			if !errors.Is(err, api.ErrUnavailable) {
				t.Errorf("copy whose engine was killed: got %v, want unavailable", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the copy did not end after its engine was killed")
		}
		node.Start()
		l.Wait("the node takes work again", lab.Nodes("munich", 1))
		if left, _ := filepath.Glob(filepath.Join(volumes, "new-*")); len(left) > 0 {
			t.Errorf("left of a copy: %v", left)
		}
	}
	sub(t, l, "kill -9 in a snapshot", func(t *testing.T) {
		slow, result := &blocked{reached: make(chan struct{}), resume: make(chan struct{})}, make(chan error, 1)
		go func() { result <- remote.Snapshot(t.Context(), l.API, id, slow) }()
		killed(slow.reached, func() { close(slow.resume) }, result)
		if m := lab.MountsUnder(volumes); len(m) != 1 {
			t.Errorf("mounts: got %v, want that of the volume", m)
		}
		put("note", "three") // blocks while it is frozen
	})

	away := func() {
		t.Helper()
		l.CLI("scale", "shop/db", "0")
		lab.Within(t, time.Minute, "the instance is gone", func() error {
			v, err := l.API.Volume(t.Context(), id)
			if err == nil && v.InUse {
				err = errors.New("it has the volume")
			}
			return err
		})
	}
	back := func() {
		t.Helper()
		l.CLI("scale", "shop/db", "1")
		l.Wait("db runs again", l.Running("shop", "db", 1))
	}
	want := func(name, text string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(at(), name)); err != nil || string(got) != text {
			t.Errorf("%s: got %.20q, %v, want %.20q", name, got, err, text)
		}
	}
	away()
	sub(t, l, "kill -9 in a restore", func(t *testing.T) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		in, out := io.Pipe()
		defer in.Close()
		reached, result := make(chan struct{}), make(chan error, 1)
		go func() { result <- remote.Restore(t.Context(), l.API, id, in) }()
		go func() {
			_, _ = out.Write(text[:len(text)/2])
			close(reached)
		}()
		killed(reached, func() {}, result)
		if m := lab.MountsUnder(volumes); len(m) != 0 {
			t.Errorf("mounts: got %v, want none", m)
		}
	})
	l.CLI("snapshot", "volume", string(id), "--to", file+".three")
	l.CLI("restore", "volume", "shop/db#0:pages", "--from", file, "--yes")
	back()
	want("note", "one")
	want("large", large)

	sub(t, l, "S3", func(t *testing.T) {
		all := s3mem.New()
		if err := all.CreateBucket("backups"); err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewTLSServer(gofakes3.New(all).Server())
		defer srv.Close()
		ca := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
			t.Fatal(err)
		}
		run := func(args ...string) {
			t.Helper()
			cmd := l.Command(l.Access(), append(args, "--endpoint", srv.URL)...)
			cmd.Env = append(cmd.Env, "AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=secret", "AWS_REGION=eu-1", "AWS_CA_BUNDLE="+ca)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("treeline %v: %v\n%s", args, err, out)
			}
		}
		put("note", "four")
		run("snapshot", "volume", string(id), "--to", "s3://backups/shop/monday")
		put("note", "five")
		away()
		run("restore", "volume", string(id), "--from", "s3://backups/shop/monday", "--yes")
		back()
		want("note", "four")
		want("large", large)
	})
	records := l.CLI("events")
	for _, want := range []string{"snapshot by admin", "snapshot by admin ended after .* with exit code 0", "restore by admin ended after .* with exit code 0", "restore by admin ended after .*: .*"} {
		if !regexp.MustCompile(want).MatchString(records) {
			t.Errorf("no record %q in:\n%s", want, records)
		}
	}
	if left, _ := filepath.Glob(file + "*.part"); len(left) > 0 {
		t.Errorf("left by the commands: %v", left)
	}
}

// blocked waits in its first Write.
type blocked struct {
	reached, resume chan struct{}
	once            sync.Once
}

// Write implements io.Writer.
func (b *blocked) Write(p []byte) (int, error) {
	b.once.Do(func() {
		close(b.reached)
		<-b.resume
	})
	return len(p), nil
}
