//go:build unix

package schedule_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/snapshot/schedule"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/store/view"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// rig is a root with a store and a schedule.
type rig struct {
	t         *testing.T
	store     *view.Store
	dir       *os.Root
	authority *ca.Authority
	identity  snapshot.Identity
	config    snapshot.Config
	env       map[string]string
	events    []string
	onRecord  func()
}

func newRig(t *testing.T, to string) *rig {
	t.Helper()
	r := &rig{t: t, store: view.New(mem.New()), env: map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-1"}}
	var err error
	if r.dir, err = os.OpenRoot(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.dir.Close() })
	if r.authority, err = ca.NewRoot(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := ca.SavePair(r.dir, "root-ca.pem", r.authority.Pair()); err != nil {
		t.Fatal(err)
	}
	text, recipient, err := snapshot.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	ids, err := snapshot.Identities(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.identity = ids[0]
	r.config = snapshot.Config{Recipients: []string{recipient}, Schedule: "0 * * * *", To: to, Keep: 2}
	if err := r.config.Validate(); err != nil {
		t.Fatal(err)
	}
	return r
}

// start returns the runner of a daemon that starts.
func (r *rig) start() *schedule.Runner {
	r.t.Helper()
	docs, err := store.Load(r.t.Context(), r.store)
	if err != nil {
		r.t.Fatal(err)
	}
	s, err := schedule.New(schedule.Options{
		Config: r.config, Store: r.store, Loaded: docs, Log: slog.New(slog.DiscardHandler), Env: func(k string) string { return r.env[k] },
		Taker: snapshot.NewTaker(snapshot.Options{Dir: r.dir, Tier: snapshot.Root, Authority: func() *x509.Certificate { return r.authority.Pair().Chain[0] }, All: r.store.All}),
		Record: func(_ context.Context, text string) error {
			r.events = append(r.events, text)
			if r.onRecord != nil {
				r.onRecord()
			}
			return nil
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// runs runs the daemon for a time.
func (r *rig) runs(d time.Duration) *schedule.Runner {
	r.t.Helper()
	s := r.start()
	ctx, cancel := context.WithTimeout(r.t.Context(), d)
	defer cancel()
	if err := s.Run(ctx); err != nil {
		r.t.Fatal(err)
	}
	return s
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range found {
		all = append(all, e.Name())
	}
	return all
}

func taken(s *schedule.Runner) (all []string) {
	for _, t := range s.Status().Taken {
		all = append(all, t.Name)
	}
	slices.Sort(all)
	return all
}

// The clock in a bubble of synctest starts at midnight of 2000-01-01 UTC.
func snapshotAt(hour int) string { return fmt.Sprintf("root-20000101T%02d0000Z.snapshot", hour) }

// TestOldSnapshotsAreDeletedAfterAGoodNewOne: and no others, also if a stranger puts files there that would sort
// before or after all.
func TestOldSnapshotsAreDeletedAfterAGoodNewOne(t *testing.T) {
	to := t.TempDir()
	foreign := []string{"note", "root-19990101T000000Z.snapshot", "root-29990101T000000Z.snapshot"}
	for _, name := range foreign {
		if err := os.WriteFile(filepath.Join(to, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, to)
		s := r.runs(4*time.Hour + time.Minute)
		want := []string{snapshotAt(3), snapshotAt(4)}
		if got := taken(s); !slices.Equal(got, want) {
			t.Errorf("taken: got %v, want %v", got, want)
		}
		all := append(slices.Clone(foreign), want...)
		slices.Sort(all)
		if got := names(t, to); !slices.Equal(got, all) {
			t.Errorf("the directory has %v, want %v", got, all)
		}
		f, err := os.Open(filepath.Join(to, snapshotAt(4)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		in, err := snapshot.Open(f)
		if err == nil {
			err = in.Content([]snapshot.Identity{r.identity}, func(string, []byte) error { return nil }, func(snapshot.Doc) error { return nil })
		}
		if err != nil {
			t.Errorf("the snapshot is not readable: %v", err)
		}
		if len(r.events) != 4 || !strings.Contains(r.events[0], "scheduled snapshot with keys for age1") {
			t.Errorf("events: got %q, want one of each", r.events)
		}
		// The daemon is down over two times: the missed one is taken at the start, once.
		time.Sleep(2 * time.Hour)
		s = r.runs(time.Minute)
		if got := taken(s); len(got) != 2 || got[0] != snapshotAt(4) || !strings.HasPrefix(got[1], "root-20000101T0601") {
			t.Errorf("after two missed times: got %v, want one more", got)
		}
	})
}

func TestAFailedRunKeepsTheOldOnesAndIsRepeated(t *testing.T) {
	to := filepath.Join(t.TempDir(), "backup")
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, to)
		r.runs(time.Hour + time.Minute)
		if err := os.Rename(to, to+".away"); err != nil {
			t.Fatal(err)
		}
		s := r.runs(2*time.Hour + time.Minute)
		st := s.Status()
		if !st.Overdue || !strings.Contains(st.Error, "no such file") || st.Failed.IsZero() || len(st.Taken) != 1 {
			t.Errorf("after failed runs: got %+v", st)
		}
		if age, interval := s.Age(), s.Interval(); age < 90*time.Minute || interval != time.Hour {
			t.Errorf("metrics: got age %v, interval %v", age, interval)
		}
		failures := len(slices.DeleteFunc(slices.Clone(r.events), func(e string) bool { return !strings.Contains(e, " failed: ") }))
		if failures != 7 { // at 2:00, after 1, 2, 4, 8 and 16 minutes, and at 3:00
			t.Errorf("got %d events of failures, want 7: %q", failures, r.events)
		}
		if got := names(t, to+".away"); !slices.Equal(got, []string{snapshotAt(1)}) {
			t.Errorf("the old ones: got %v, want that of 1:00", got)
		}
		if err := os.Rename(to+".away", to); err != nil {
			t.Fatal(err)
		}
		s = r.runs(time.Hour)
		if st := s.Status(); st.Overdue || st.Error != "" || len(st.Taken) != 2 {
			t.Errorf("after the cause is mended: got %+v", st)
		}
	})
}

// TestAnInterruptedRunIsCleanedUp: the daemon is killed while it writes.
func TestAnInterruptedRunIsCleanedUp(t *testing.T) {
	to := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, to)
		s := r.start()
		ctx, cancel := context.WithCancel(t.Context())
		// The state is saved, and the write begins with a context that has ended.
		r.store.Store = &cancels{r.store.Store, cancel}
		if err := s.Take(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want canceled", err)
		}
		if got := names(t, to); len(got) != 0 {
			t.Errorf("left by a canceled run: %v", got)
		}
		// What a killed one leaves.
		part := snapshotAt(0) + ".part"
		if err := os.WriteFile(filepath.Join(to, part), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		if st := s.Status(); st.Error != "" || len(st.Taken) != 0 {
			t.Errorf("after a stop: got %+v, want neither a failure nor a snapshot", st)
		}
		s = r.runs(time.Hour + time.Minute)
		if got := names(t, to); !slices.Equal(got, []string{snapshotAt(1)}) || !slices.Equal(taken(s), got) {
			t.Errorf("the directory has %v, the status %v, want %v", got, taken(s), snapshotAt(1))
		}
	})
}

// cancels cancels after a save.
type cancels struct {
	store.Store
	cancel func()
}

// Save implements store.Store.
func (c *cancels) Save(ctx context.Context, docs []store.Doc) error {
	defer c.cancel()
	return c.Store.Save(ctx, docs)
}

func TestAFullDiskFailsTheRunAndLeavesNothing(t *testing.T) {
	to := t.TempDir()
	programtest.NeedRoot(t)
	if err := unix.Mount("tmpfs", to, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
	r := newRig(t, to)
	s := r.start()
	if err := s.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := names(t, to)
	noise := make([]byte, 256<<10) // does not compress
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Save(t.Context(), []store.Doc{{Kind: "app", Key: "large", Version: 1, Data: noise}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Take(t.Context()); !errors.Is(err, api.ErrFull) {
		t.Fatalf("got %v, want full", err)
	}
	if got := names(t, to); !slices.Equal(got, old) {
		t.Errorf("the directory has %v, want %v", got, old)
	}
}

func TestSnapshotsGoToAnS3Server(t *testing.T) {
	all := s3mem.New()
	if err := all.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	var broken func(w http.ResponseWriter, q *http.Request) bool
	fake := gofakes3.New(all).Server()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if broken == nil || !broken(w, q) {
			fake.ServeHTTP(w, q)
		}
	}))
	defer srv.Close()
	r := newRig(t, "s3://backups/root/")
	r.config.Endpoint, r.config.Keep = srv.URL, 1
	r.env["AWS_CA_BUNDLE"] = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(r.env["AWS_CA_BUNDLE"], ca.EncodeChain([]*x509.Certificate{srv.Certificate()}), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := func() (names []string) {
		t.Helper()
		found, err := all.ListBucket("backups", nil, gofakes3.ListBucketPage{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range found.Contents {
			names = append(names, strings.TrimPrefix(c.Key, "root/"))
		}
		return names
	}
	s := r.start()
	if err := s.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := keys()
	if len(first) != 1 || !slices.Equal(taken(s), first) {
		t.Fatalf("the bucket has %v, the status %v, want one snapshot", first, taken(s))
	}
	second := func() { // names have seconds
		for time.Now().UTC().Format("20060102T150405Z") == strings.TrimSuffix(strings.TrimPrefix(first[0], "root-"), ".snapshot") {
			time.Sleep(10 * time.Millisecond)
		}
	}
	second()
	// The server answers with fewer bytes than it got.
	broken = func(w http.ResponseWriter, q *http.Request) bool {
		if q.Method != http.MethodGet || !strings.HasSuffix(q.URL.Path, ".snapshot") {
			return false
		}
		rec := httptest.NewRecorder()
		fake.ServeHTTP(rec, q)
		text := bytes.Clone(rec.Body.Bytes())
		text[len(text)-1] ^= 1
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(text)
		return true
	}
	if err := s.Take(t.Context()); err == nil || !strings.Contains(err.Error(), "read the snapshot again") {
		t.Fatalf("a damaged snapshot: got %v, want an error", err)
	}
	if got := keys(); !slices.Contains(got, first[0]) {
		t.Errorf("the good one was deleted: the bucket has %v", got)
	}
	broken = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	}
	if err := s.Take(t.Context()); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("a server that refuses: got %v, want forbidden", err)
	}
	if st := s.Status(); st.Error == "" || len(st.Taken) != 1 {
		t.Errorf("after failed runs: got %+v", st)
	}
	broken = nil
	if err := s.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The damaged one and that before are gone.
	if got := keys(); len(got) != 1 || got[0] == first[0] || !slices.Equal(taken(s), got) {
		t.Errorf("the bucket has %v, the status %v, want one new snapshot", got, taken(s))
	}
	if strings.Contains(strings.Join(r.events, " "), "secret\"") {
		t.Error("an event has the credentials")
	}
}

func TestInvalidSchedulesAreRefused(t *testing.T) {
	_, recipient, err := snapshot.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	good := snapshot.Config{Recipients: []string{recipient}, Schedule: "0 3 * * *", TimeZone: "Europe/Berlin", To: "/backup", Keep: 3}
	for name, change := range map[string]func(*snapshot.Config){
		"":                      func(*snapshot.Config) {},
		"snapshot.schedule":     func(c *snapshot.Config) { c.Schedule = "at noon" },
		"unknown time zone":     func(c *snapshot.Config) { c.TimeZone = "Mars/Base" },
		"snapshot.recipients":   func(c *snapshot.Config) { c.Recipients = nil },
		"neither the absolute":  func(c *snapshot.Config) { c.To = "backup" },
		"with / at its end":     func(c *snapshot.Config) { c.To = "s3://backups/root" },
		"is not s3://BUCKET/":   func(c *snapshot.Config) { c.To = "s3:///root/" },
		"snapshot.endpoint is":  func(c *snapshot.Config) { c.Endpoint = "https://s3" },
		"snapshot.keep":         func(c *snapshot.Config) { c.Keep = 1000 },
		"which is missing":      func(c *snapshot.Config) { c.Schedule = "" },
		"is not an X25519 reci": func(c *snapshot.Config) { c.Recipients = []string{"AGE-SECRET-KEY-1"} },
	} {
		c := good
		change(&c)
		err := c.Validate()
		if name == "" && err != nil || name != "" && (!errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), strings.TrimSuffix(name, "reci"))) {
			t.Errorf("%q: got %v", name, err)
		}
	}
}
