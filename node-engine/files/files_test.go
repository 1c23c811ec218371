package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// cluster has values, and records signals.
type cluster struct {
	t    *testing.T
	opt  Options
	mu   sync.Mutex
	has  map[wire.WantValue]wire.Value
	down bool

	signals chan syscall.Signal
	noSuch  bool // no workload runs
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, has: map[wire.WantValue]wire.Value{}, signals: make(chan syscall.Signal, 10)}
	c.opt = Options{
		Dir: filepath.Join(t.TempDir(), "files"), OnDisk: true, Log: slog.New(slog.DiscardHandler),
		Fetch: func(_ context.Context, w wire.WantValue) (wire.Value, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			v, ok := c.has[w]
			switch {
			case c.down:
				return v, fmt.Errorf("cluster: %w", api.ErrUnavailable)
			case !ok:
				return v, fmt.Errorf("cluster: %w", api.ErrNotFound)
			}
			return v, nil
		},
		Signal: func(_ context.Context, _ wire.Key, s syscall.Signal) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.noSuch {
				return api.ErrNotFound
			}
			c.signals <- s
			return nil
		},
	}
	return c
}

func (c *cluster) open() *Files {
	c.t.Helper()
	f, err := Open(c.opt)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

func (c *cluster) setDown(down bool) {
	c.mu.Lock()
	c.down = down
	c.mu.Unlock()
}

func (c *cluster) add(kind api.ValueKind, name string, version uint64, data map[string]string) wire.ValueRef {
	v := wire.Value{Salt: []byte{byte(version)}, Data: map[string][]byte{}}
	for k, text := range data {
		v.Data[k] = []byte(text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.has[wire.WantValue{Tenant: "acme", Kind: kind, Name: name, Version: version}] = v
	return wire.ValueRef{Kind: kind, Name: name, Version: version, Digest: v.Digest()}
}

func placement(n int) wire.Key {
	return wire.Key{Instance: api.ServiceID("acme/shop.prod.web.v1").Instance(n), Epoch: 7}
}

func content(t *testing.T, f *runtime.Files, n int) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(f.Dir, "data", fmt.Sprint(n)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func prepare(t *testing.T, f *Files, k wire.Key, spec *api.Microservice, refs ...wire.ValueRef) *runtime.Files {
	t.Helper()
	out, _, err := f.Prepare(t.Context(), k, spec, refs)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var spec = &api.Microservice{Files: []api.File{
	{Path: "/etc/web/hello", Content: "instance {{instance.number}}", Template: true},
	{Path: "/run/secrets/db", Secret: "db", OnChange: "signal:SIGHUP"},
	{Path: "/run/secrets/more/user", Secret: "account.user"},
	{Path: "/etc/web.conf", Config: "web.main", Mode: "0640", OnChange: "signal:SIGUSR1"},
}}

func (c *cluster) refs(version uint64) []wire.ValueRef {
	return []wire.ValueRef{
		c.add(api.KindConfig, "web", version, map[string]string{"main": fmt.Sprint("main ", version), "other": "x"}),
		c.add(api.KindSecret, "account", 1, map[string]string{"user": "alice", "password": "p"}),
		c.add(api.KindSecret, "db", version, map[string]string{"password": fmt.Sprint("secret ", version)}),
	}
}

func TestFilesAreWrittenForTheirWorkload(t *testing.T) {
	c := newCluster(t)
	f := c.open()
	out := prepare(t, f, placement(3), spec, c.refs(1)...)
	for i, want := range []string{"instance 3", "secret 1", "alice", "main 1"} {
		if got := content(t, out, i); got != want {
			t.Errorf("%s contains %q, want %q", spec.Files[i].Path, got, want)
		}
	}
	for i, want := range []fs.FileMode{0o444, 0o400, 0o400, 0o640} {
		info, err := os.Stat(filepath.Join(out.Dir, "data", fmt.Sprint(i)))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v (%v), want %v", spec.Files[i].Path, info.Mode().Perm(), err, want)
		}
	}
	wantLinks := []runtime.FileLink{{Path: "/etc/web/hello", Target: "/run/treeline/data/0"}, {Path: "/etc/web.conf", Target: "/run/treeline/data/3"}}
	if !slices.Equal(out.Links, wantLinks) {
		t.Errorf("links are %v, want %v", out.Links, wantLinks)
	}
	if len(out.Mounts) != 1 || out.Mounts[0].Path != "/run/secrets" {
		t.Fatalf("mounts are %v, want one at /run/secrets", out.Mounts)
	}
	for path, want := range map[string]string{"db": "/run/treeline/data/1", "more/user": "/run/treeline/data/2"} {
		if got, err := os.Readlink(filepath.Join(out.Mounts[0].Dir, path)); err != nil || got != want {
			t.Errorf("/run/secrets/%s links to %q (%v), want %q", path, got, err, want)
		}
	}
	if info, err := os.Stat(c.opt.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, want 0700: other users of the machine", info.Mode().Perm())
	}
	if err := f.Remove(placement(3)); err != nil {
		t.Fatal(err)
	}
	if all, err := os.ReadDir(c.opt.Dir); err != nil || len(all) > 0 {
		t.Errorf("%v is left (%v), want nothing", all, err)
	}
}

func run(t *testing.T, f *Files) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func TestAnUpdateReplacesAllFilesAndSignalsForThoseThatChanged(t *testing.T) {
	c := newCluster(t)
	f := c.open()
	run(t, f)
	old := c.refs(1)
	out := prepare(t, f, placement(0), spec, old...)
	next := slices.Clone(old)
	next[2] = c.add(api.KindSecret, "db", 2, map[string]string{"password": "secret 2"})
	next[0] = c.add(api.KindConfig, "web", 2, map[string]string{"main": "main 1", "other": "y"}) // another key
	f.Update(placement(0), spec, next)
	if s := <-c.signals; s != syscall.SIGHUP {
		t.Errorf("the signal is %v, want SIGHUP", s)
	}
	if got := content(t, out, 1); got != "secret 2" {
		t.Errorf("the secret is %q when the signal arrives, want the new version", got)
	}
	f.Update(placement(0), spec, next)
	f.Update(placement(1), spec, next) // it has no files
	next = slices.Clone(next)
	next[0] = c.add(api.KindConfig, "web", 3, map[string]string{"main": "main 3"})
	f.Update(placement(0), spec, next)
	if s := <-c.signals; s != syscall.SIGUSR1 {
		t.Errorf("the next signal is %v, want SIGUSR1", s)
	}
	all, _ := filepath.Glob(filepath.Join(out.Dir, "v*"))
	if len(all) != 1 {
		t.Errorf("%v exist, want one version", all)
	}
}

// The engine may be killed between the replacement of the files and the signal.
func TestASignalIsSentAgainAfterACrash(t *testing.T) {
	c := newCluster(t)
	f := c.open()
	prepare(t, f, placement(0), spec, c.refs(1)...)
	next := c.refs(2)
	e := f.entry(placement(0))
	if _, err := f.write(t.Context(), placement(0), e, spec, next); err != nil {
		t.Fatal(err)
	}
	again := c.open()
	if err := again.Sweep([]wire.Key{placement(0)}); err != nil {
		t.Fatal(err)
	}
	run(t, again)
	again.Update(placement(0), spec, next)
	got := []syscall.Signal{<-c.signals, <-c.signals}
	slices.Sort(got)
	if want := []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1}; !slices.Equal(got, want) {
		t.Errorf("signals are %v, want %v", got, want)
	}
}

func TestFilesStayWithoutTheCluster(t *testing.T) {
	c := newCluster(t)
	f := c.open()
	refs := c.refs(1)
	prepare(t, f, placement(0), spec, refs...)
	c.setDown(true)
	again := c.open()
	if err := again.Sweep([]wire.Key{placement(0)}); err != nil {
		t.Fatal(err)
	}
	if out := prepare(t, again, placement(0), spec, refs...); content(t, out, 1) != "secret 1" {
		t.Error("the secret changed")
	}
	_, _, err := again.Prepare(t.Context(), placement(1), spec, refs)
	if runtime.Reason(err) != api.ReasonNoFiles || !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("another workload without the cluster: %v, want %s", err, api.ReasonNoFiles)
	}
}

func TestAnUpdateIsRepeatedUntilTheClusterAnswers(t *testing.T) {
	c := newCluster(t)
	f := c.open()
	run(t, f)
	prepare(t, f, placement(0), spec, c.refs(1)...)
	next := c.refs(2)
	c.setDown(true)
	f.Update(placement(0), spec, next)
	time.Sleep(50 * time.Millisecond) // the first attempt may fail or not have begun
	c.setDown(false)
	select {
	case <-c.signals:
	case <-time.After(time.Minute):
		t.Fatal("the update was not repeated")
	}
}

func TestMissingValuesAreNamed(t *testing.T) {
	c := newCluster(t)
	f := c.open()
	refs := c.refs(1)
	for name, tt := range map[string]struct {
		refs []wire.ValueRef
		text string
	}{
		"deleted":        {refs[:2], "secret db does not exist"},
		"no such key":    {[]wire.ValueRef{c.add(api.KindConfig, "web", 9, map[string]string{"x": ""}), refs[1], refs[2]}, `has the keys ["x"], want main`},
		"several keys":   {[]wire.ValueRef{refs[0], refs[1], c.add(api.KindSecret, "db", 9, map[string]string{"a": "", "b": ""})}, "want one key"},
		"another digest": {[]wire.ValueRef{refs[0], refs[1], {Kind: api.KindSecret, Name: "db", Version: 1, Digest: "other"}}, "another digest"},
	} {
		if _, _, err := f.Prepare(t.Context(), placement(0), spec, tt.refs); runtime.Reason(err) != api.ReasonNoFiles || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %s with %q", name, err, api.ReasonNoFiles, tt.text)
		}
	}
}

func TestFilesOfEarlierWorkloadsAreSwept(t *testing.T) {
	c := newCluster(t)
	f := c.open()
	refs := c.refs(1)
	for n := range 3 {
		prepare(t, f, placement(n), spec, refs...)
	}
	again := c.open() // after kill -9
	prepare(t, again, placement(1), spec, refs...)
	if err := again.Sweep([]wire.Key{placement(2)}); err != nil {
		t.Fatal(err)
	}
	var left []string
	all, err := os.ReadDir(c.opt.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		left = append(left, d.Name())
	}
	want := []string{runtime.ID(placement(1)), runtime.ID(placement(2))}
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("%v are left, want those of workloads 1 and 2: %v", left, want)
	}
}

func TestFilesOfOneTenantLeaveRoomForOthers(t *testing.T) {
	c := newCluster(t)
	f := c.open()
	large := &api.Microservice{}
	for i := range 8 {
		large.Files = append(large.Files, api.File{Path: fmt.Sprint("/etc/", i), Content: strings.Repeat("x", api.MaxFileBytes*2)})
	}
	of := func(tenant string, n int) wire.Key {
		return wire.Key{Instance: api.ServiceID(tenant + "/a.b.c.d").Instance(n), Epoch: 1}
	}
	n := 0
	for ; ; n++ {
		if _, _, err := f.Prepare(t.Context(), of("evil/sub", n), large, nil); err != nil {
			if !errors.Is(err, api.ErrFull) || n != maxTenant/maxPlacement {
				t.Fatalf("after %d workloads of one tenant: %v, want ErrFull after %d", n, err, maxTenant/maxPlacement)
			}
			break
		}
	}
	prepare(t, f, of("acme", 0), large)
	if err := f.Remove(of("evil/sub", 0)); err != nil {
		t.Fatal(err)
	}
	prepare(t, f, of("evil", 0), large)
	large.Files = append(large.Files, api.File{Path: "/etc/more", Content: "x"})
	if _, _, err := f.Prepare(t.Context(), of("acme", 1), large, nil); !errors.Is(err, api.ErrTooLarge) {
		t.Errorf("a workload with more than %d bytes: %v, want ErrTooLarge", maxPlacement, err)
	}
}

func TestAccountsAreForTheImageOnly(t *testing.T) {
	c := newCluster(t)
	f := c.open()
	account := c.add(api.KindSecret, "pull", 1, map[string]string{api.UsernameKey: "alice", api.PasswordKey: "marked"})
	account.Registry = "registry.example"
	out, login, err := f.Prepare(t.Context(), placement(0), &api.Microservice{}, []wire.ValueRef{account})
	if err != nil || out != nil || login == nil || *login != (runtime.Login{Registry: "registry.example", Username: "alice", Password: "marked"}) {
		t.Errorf("files %v, account %v, %v; want the account only", out, login, err)
	}
	if text := fmt.Sprintf("%v %+v %#v", login, *login, login); strings.Contains(text, "marked") {
		t.Errorf("formatted as %s", text)
	}
	if all, _ := os.ReadDir(c.opt.Dir); len(all) > 0 {
		t.Errorf("%v is written, want nothing", all)
	}
}

func TestAFileSystemInMemoryIsMountedAndDeleted(t *testing.T) {
	programtest.NeedRoot(t)
	dir := filepath.Join(t.TempDir(), "files")
	c := newCluster(t)
	c.opt.Dir, c.opt.OnDisk = dir, false
	for range 2 { // the second finds it mounted
		c.open()
	}
	prepare(t, c.open(), placement(0), spec, c.refs(1)...)
	if err := Delete(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after its deletion: %v, want no directory", err)
	}
	if err := Delete(dir); err != nil {
		t.Errorf("delete it again: %v", err)
	}
}
