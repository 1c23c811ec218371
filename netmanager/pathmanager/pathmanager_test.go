package pathmanager

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fakeWire is a tunnel that sends nothing and records the calls of its methods.
type fakeWire struct {
	mu    sync.Mutex // guards calls
	calls []string
}

func (w *fakeWire) record(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, fmt.Sprintf(format, args...))
}

func (w *fakeWire) SetPeer(p api.Peer)                                 { w.record("set %d", p.Key[0]) }
func (w *fakeWire) DropPeer(k api.PeerKey)                             { w.record("drop %d", k[0]) }
func (w *fakeWire) Connect(k api.PeerKey)                              { w.record("connect %d", k[0]) }
func (w *fakeWire) SetPath(api.PeerKey, tunnel.Path)                   {}
func (w *fakeWire) SetTries(api.PeerKey, ...tunnel.Path)               {}
func (w *fakeWire) SetMTU(api.PeerKey, int)                            {}
func (w *fakeWire) SendControl(api.PeerKey, tunnel.Path, []byte) error { return nil }
func (w *fakeWire) Stats() []tunnel.Stats                              { return nil }

// rig is a manager that runs when the test calls run.
type rig struct {
	*Manager
	t       *testing.T
	wire    fakeWire
	notices chan overlay.Input
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, notices: make(chan overlay.Input, 10_000)}
	r.Manager = New(Options{
		Post: func(in overlay.Input) {
			if _, ok := in.(overlay.Path); !ok {
				r.notices <- in
			}
		},
		Log: slog.New(slog.DiscardHandler),
	})
	return r
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, &r.wire) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

// await waits for the notice of the peer with the serial, and returns how many other notices
// came before.
func (r *rig) await(k api.PeerKey, serial uint64) (others int) {
	r.t.Helper()
	for {
		select {
		case in := <-r.notices:
			if n, ok := in.(overlay.Noticed); ok && n.Key == k && n.Notice.Serial == serial {
				return others
			}
			others++
		case <-time.After(30 * time.Second):
			r.t.Fatalf("notice %d of peer %d has not come within 30 s", serial, k[0])
		}
	}
}

var (
	loud, quiet = api.PeerKey{1}, api.PeerKey{2}
	direct      = tunnel.Path{Kind: api.PathDirect, Addr: netip.MustParseAddrPort("192.0.2.1:7000")}
)

// TestMessagesOfOnePeerLeaveRoomForOthers floods with messages and events of one peer
// while Run does not run.
func TestMessagesOfOnePeerLeaveRoomForOthers(t *testing.T) {
	r := newRig(t)
	r.SetPeer(api.Peer{Key: loud})
	r.SetPeer(api.Peer{Key: quiet})
	for i := range uint64(100_000) {
		r.Control(loud, direct, peermsg.Notice{Serial: i}.Append(nil))
		r.Control(loud, direct, make([]byte, 1400))
		r.Send(loud, peermsg.NoticeAck{Serial: i}, false)
		r.Event(tunnel.Established{Peer: loud, From: direct})
		r.Event(tunnel.Traffic{Peer: loud})
		r.Event(tunnel.Recovered{Peer: loud})
		r.Event(tunnel.Silent{Peer: loud})
		r.Measure(loud)
	}
	if n, most := r.queue.size(), maxPeerMessages+2*len(peerKinds); n > most {
		t.Errorf("%d tasks wait after a flood of one peer, want at most %d", n, most)
	}
	for i := range uint64(50) {
		r.Control(quiet, direct, peermsg.Notice{Serial: i}.Append(nil))
	}
	r.run()
	if n, most := r.await(quiet, 49), maxPeerMessages+50+2; n > most {
		t.Errorf("%d notices came before the last of the quiet peer, want at most %d", n, most)
	}
	// Run has freed the places.
	r.Control(loud, direct, peermsg.Notice{Serial: 1 << 40}.Append(nil))
	r.Control(quiet, direct, peermsg.Notice{Serial: 1 << 41}.Append(nil))
	r.await(quiet, 1<<41)
	if n := r.queue.room.Size(); n != 0 {
		t.Errorf("%d places are taken when no message waits, want 0", n)
	}
}

// Beyond its bound a peer's newest messages are lost; those that wait are carried out.
func TestMessagesBeyondAPeersBoundAreLost(t *testing.T) {
	q := newQueue()
	var done []int
	for i := range maxPeerMessages + 100 {
		q.message(loud, func() func() {
			if i >= maxPeerMessages {
				t.Errorf("message %d was prepared, want it lost at the bound of %d", i, maxPeerMessages)
			}
			return func() { done = append(done, i) }
		})
	}
	for _, task := range q.take() {
		task.carryOut()
	}
	if len(done) != maxPeerMessages || done[0] != 0 || !slices.IsSorted(done) {
		t.Errorf("%d messages carried out, want the first %d in order", len(done), maxPeerMessages)
	}
	taken := 0
	q.message(loud, func() func() { taken++; return func() {} })
	if taken != 1 {
		t.Error("a message after the queue was emptied is lost, want it taken")
	}
}

// The bound of all messages holds for any number of peers.
func TestMessagesOfManyPeersAreBounded(t *testing.T) {
	q := newQueue()
	for i := range 3000 {
		q.message(api.PeerKey{byte(i), byte(i >> 8)}, func() func() { return func() {} })
	}
	if n := q.size(); n > maxMessages {
		t.Errorf("%d messages of 3000 peers wait, want at most %d", n, maxMessages)
	}
}

// TestTasksOfTheCoreAreBounded repeats each order while Run does not run. What is carried
// out then is the last state.
func TestTasksOfTheCoreAreBounded(t *testing.T) {
	r := newRig(t)
	most := 2 * (2*len(peerKinds) + 1)
	for i := range 10_000 {
		r.SetSelf(Self{})
		r.SetPeer(api.Peer{Key: loud})
		r.Measure(loud)
		if i%10 == 0 {
			r.DropPeer(loud)
			r.SetPeer(api.Peer{Key: loud})
		}
		if n := r.queue.size(); n > most {
			t.Fatalf("%d tasks wait after %d orders about one peer, want at most %d, cancelled ones included", n, i, most)
		}
	}
	r.SetPeer(api.Peer{Key: quiet})
	r.Event(tunnel.Established{Peer: loud, From: direct})
	r.DropPeer(loud) // cancels what waits
	r.Event(tunnel.Established{Peer: quiet, From: direct})
	r.run()
	select {
	case in := <-r.notices:
		if s, ok := in.(overlay.Session); !ok || s.Key != quiet {
			t.Errorf("first report %+v, want the session of the peer that was not dropped", in)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the session of the peer that was not dropped is not reported within 30 s")
	}
	r.wire.mu.Lock()
	defer r.wire.mu.Unlock()
	if got := fmt.Sprint(r.wire.calls); got != "[set 2]" {
		t.Errorf("calls of the tunnel %s, want [set 2]: the other peer was dropped before Run knew it", got)
	}
}

// Peers that come and go while Run does not run leave no tasks.
func TestCancelledTasksTakeNoRoom(t *testing.T) {
	r := newRig(t)
	for i := range 10_000 {
		k := api.PeerKey{1, byte(i), byte(i >> 8)}
		r.SetPeer(api.Peer{Key: k})
		r.Measure(k)
		r.DropPeer(k)
		if n := r.queue.size(); n > 2 {
			t.Fatalf("%d tasks wait after %d peers came and went, want at most 2", n, i+1)
		}
	}
}

// A peer that Run knows is dropped there, whatever is cancelled.
func TestAKnownPeerIsDropped(t *testing.T) {
	r := newRig(t)
	r.SetPeer(api.Peer{Key: loud})
	r.SetPeer(api.Peer{Key: quiet})
	r.run()
	r.Event(tunnel.Established{Peer: quiet, From: direct})
	<-r.notices // both are known
	for range 3 {
		r.DropPeer(loud)
		r.SetPeer(api.Peer{Key: loud})
	}
	r.DropPeer(loud)
	r.Control(quiet, direct, peermsg.Notice{Serial: 1}.Append(nil))
	r.await(quiet, 1)
	r.wire.mu.Lock()
	defer r.wire.mu.Unlock()
	if n := len(r.wire.calls); n == 0 || r.wire.calls[n-1] != "drop 1" {
		t.Errorf("calls of the tunnel %v, want drop 1 at the end", r.wire.calls)
	}
}

// size returns the number of tasks in memory, including cancelled ones.
func (q *queue) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.tasks)
}
