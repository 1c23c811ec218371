package mover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/treecopy"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fakeNodes are directories.
type fakeNodes struct {
	dir string

	mu       sync.Mutex
	refuse   map[api.NodeID]error
	requests []wire.StreamRequest
	hang     func(id api.NodeID, r wire.StreamRequest) bool // the node never answers
	wg       sync.WaitGroup
}

func (f *fakeNodes) Connect(ctx context.Context, id api.NodeID, r wire.StreamRequest) (io.ReadWriteCloser, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, r)
	if err := f.refuse[id]; err != nil {
		return nil, fmt.Errorf("ask node %s: %w", id, err)
	}
	near, far := net.Pipe()
	if f.hang != nil && f.hang(id, r) {
		return near, nil
	}
	f.wg.Go(func() {
		defer far.Close()
		at := filepath.Join(f.dir, string(id))
		if r.Kind == wire.StreamSendVolume {
			_, _ = treecopy.Send(ctx, at, far, treecopy.Options{Final: r.Copy.Final})
		} else {
			_, _ = treecopy.Receive(ctx, far, treecopy.Options{Prepare: func(context.Context) (string, error) { return at, nil }})
		}
	})
	return near, nil
}

func (f *fakeNodes) Stream(_ context.Context, id api.NodeID, r wire.StreamRequest) (io.ReadCloser, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, r)
	return io.NopCloser(bytes.NewReader(nil)), f.refuse[id]
}

func (f *fakeNodes) asked() []wire.StreamRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]wire.StreamRequest(nil), f.requests...)
}

var account = []wire.ValueRef{{Kind: api.KindSecret, Name: "registry", Version: 1, Registry: "registry.example"}}

func task(id api.InstanceID, p moves.Phase, from, to api.NodeID) moves.Task {
	m := api.Microservice{Code: "db:1", Volumes: []api.Volume{{Name: "data", Type: api.VolumeLocal, SizeMB: 16}, {Name: "tmp", Type: api.VolumeEphemeral, SizeMB: 16}}}
	return moves.Task{Instance: id, Epoch: 3, Phase: p, From: from, To: to, Spec: m, Values: account}
}

const db = api.InstanceID("acme/shop.prod.db.v1#0")

// run starts a Mover, and returns its results.
func run(t *testing.T, f *fakeNodes) (*Mover, chan moves.Result) {
	t.Helper()
	results := make(chan moves.Result, 100)
	m := New(Options{
		Nodes: f, MinPause: time.Millisecond, MaxPause: 5 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Deliver: func(ctx context.Context, r moves.Result) error {
			select {
			case results <- r:
			case <-ctx.Done():
			}
			return nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		_ = m.Run(ctx)
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		f.wg.Wait()
	})
	return m, results
}

func newNodes(t *testing.T) *fakeNodes {
	f := &fakeNodes{dir: t.TempDir(), refuse: map[api.NodeID]error{}}
	for _, id := range []string{"berlin", "oslo", "paris", "rome"} {
		if err := os.Mkdir(filepath.Join(f.dir, id), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(f.dir, "berlin", "log"), bytes.Repeat([]byte("x"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestTasksAreCarriedOut(t *testing.T) {
	f := newNodes(t)
	m, results := run(t, f)
	for _, p := range []moves.Phase{moves.Copying, moves.Finishing, moves.Discarding} {
		all := []moves.Task{task(db, p, "berlin", "oslo")}
		m.Set(all)
		m.Set(all) // repeated
		r := <-results
		if want := map[moves.Phase]int64{moves.Copying: 1000}[p]; r.Fault != "" || r.Phase != p || r.Bytes != want {
			t.Fatalf("%s: got %+v, want %d bytes and no fault", p, r, want)
		}
	}
	if b, err := os.ReadFile(filepath.Join(f.dir, "oslo", "log")); err != nil || len(b) != 1000 {
		t.Errorf("the target has %d bytes, %v", len(b), err)
	}
	asked := f.asked()
	if len(asked) != 5 {
		t.Fatalf("requests: got %+v, want two for each pass and one to discard", asked)
	}
	for i, r := range asked {
		final := i >= 2
		if r.Instance != db || r.Epoch != 3 || r.Path != string(db.Volume("data")) || r.Copy != nil && r.Copy.Final != final {
			t.Errorf("request %d: got %+v", i, r)
		}
		if first := i < 2 && r.Kind == wire.StreamReceiveVolume; first != (r.Copy != nil && r.Copy.Code == "db:1" && slices.Equal(r.Copy.Values, account)) {
			t.Errorf("request %d: got %+v, want the image and its account in the first pass, for the target alone", i, r.Copy)
		}
	}
}

// TestFaultsAreRepeatedWithoutNames: the root gets them.
func TestFaultsAreRepeatedWithoutNames(t *testing.T) {
	f := newNodes(t)
	f.refuse["oslo"] = errors.New("node oslo has no space")
	m, results := run(t, f)
	m.Set([]moves.Task{task(db, moves.Copying, "berlin", "oslo")})
	for n := 1; n <= 3; n++ {
		r := <-results
		if r.Failures != n || strings.Contains(r.Fault, "oslo") || !strings.Contains(r.Fault, "the target has no space") {
			t.Errorf("result %d: got %+v, want the fault without the node's name", n, r)
		}
	}
	f.mu.Lock()
	delete(f.refuse, "oslo")
	f.mu.Unlock()
	for r := range results {
		if r.Fault == "" {
			break
		}
	}
}

// TestTasksThatAreNotWantedEnd also when a node does not answer.
func TestTasksThatAreNotWantedEnd(t *testing.T) {
	f := newNodes(t)
	f.hang = func(api.NodeID, wire.StreamRequest) bool { return true }
	m, results := run(t, f)
	m.Set([]moves.Task{task(db, moves.Finishing, "berlin", "oslo")})
	for len(f.asked()) < 2 {
		time.Sleep(time.Millisecond)
	}
	m.Set(nil)
	f.mu.Lock()
	f.hang = nil
	f.mu.Unlock()
	m.Set([]moves.Task{task(db, moves.Copying, "berlin", "oslo")})
	if r := <-results; r.Phase != moves.Copying || r.Fault != "" {
		t.Errorf("got %+v, want only the result of the second task", r)
	}
}

// TestMovesOfOneTenantLeaveRoomForOthers: copies of one tenant that never end, and most of
// them from one node. Those that wait for that node hold no turn of their tenant.
func TestMovesOfOneTenantLeaveRoomForOthers(t *testing.T) {
	f := newNodes(t)
	f.hang = func(_ api.NodeID, r wire.StreamRequest) bool { return r.Instance.Tenant() == "acme" }
	m, results := run(t, f)
	var all []moves.Task
	for i := range 50 {
		from := "n0"
		if i >= 40 {
			from = "n1"
		}
		all = append(all, task(api.ServiceID("acme/shop.prod.db.v1").Instance(i), moves.Copying, api.NodeID(from), "oslo"))
	}
	m.Set(all)
	for len(f.asked()) < 2*perTenant {
		time.Sleep(time.Millisecond)
	}
	other := task("other/shop.prod.db.v1#0", moves.Copying, "paris", "rome")
	urgent := task("acme/last.prod.db.v1#0", moves.Finishing, "berlin", "oslo") // its instance does not run
	f.mu.Lock()
	f.hang = func(_ api.NodeID, r wire.StreamRequest) bool {
		return r.Instance.Tenant() == "acme" && r.Instance != urgent.Instance
	}
	f.mu.Unlock()
	m.Set(append(all, other, urgent))
	got := map[api.InstanceID]bool{}
	for range 2 {
		r := <-results
		got[r.Instance] = r.Fault == ""
	}
	if !got[other.Instance] || !got[urgent.Instance] {
		t.Errorf("results: got %v, want those of the other tenant and of the last pass", got)
	}
	if n := len(f.asked()); n != 2*perTenant+4 {
		t.Errorf("%d streams were opened, want %d for the first tenant and 4", n, 2*perTenant)
	}
}
