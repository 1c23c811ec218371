package wayfinder

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// wire is a tunnel that sends nothing and records what it is told.
type wire struct {
	mu   sync.Mutex // guards told
	told []string
}

func (w *wire) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, fmt.Sprintf(format, args...))
}

func (w *wire) SetPeer(p api.Peer)                                 { w.say("set %d", p.Key[0]) }
func (w *wire) DropPeer(k api.PeerKey)                             { w.say("drop %d", k[0]) }
func (w *wire) Connect(k api.PeerKey)                              { w.say("connect %d", k[0]) }
func (w *wire) SetPath(api.PeerKey, tunnel.Path)                   {}
func (w *wire) SetTries(api.PeerKey, ...tunnel.Path)               {}
func (w *wire) SetMTU(api.PeerKey, int)                            {}
func (w *wire) SendControl(api.PeerKey, tunnel.Path, []byte) error { return nil }
func (w *wire) Stats() []tunnel.Stats                              { return nil }

// rig is a finder that runs when the test says so.
type rig struct {
	*Finder
	t       *testing.T
	wire    wire
	notices chan overlay.Input
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, notices: make(chan overlay.Input, 10_000)}
	r.Finder = New(Options{
		Report: func(overlay.Path) {}, Notice: func(in overlay.Input) { r.notices <- in }, Log: slog.New(slog.DiscardHandler),
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

// hears waits for the notice of the peer with the serial, and returns how many of the
// other peer came before.
func (r *rig) hears(k api.PeerKey, serial uint64) (others int) {
	r.t.Helper()
	for {
		select {
		case in := <-r.notices:
			if n, ok := in.(overlay.Noticed); ok && n.Key == k && n.Notice.Serial == serial {
				return others
			}
			others++
		case <-time.After(30 * time.Second):
			r.t.Fatalf("notice %d of peer %d does not come", serial, k[0])
		}
	}
}

var (
	loud, quiet = api.PeerKey{1}, api.PeerKey{2}
	direct      = tunnel.Path{Kind: api.PathDirect, Addr: netip.MustParseAddrPort("192.0.2.1:7000")}
)

// TestMessagesOfOnePeerLeaveRoomForOthers floods with messages and events of one peer
// while nothing is carried out.
func TestMessagesOfOnePeerLeaveRoomForOthers(t *testing.T) {
	r := newRig(t)
	r.SetPeer(api.Peer{Key: loud})
	r.SetPeer(api.Peer{Key: quiet})
	for i := range uint64(100_000) {
		r.Control(loud, direct, notice.Notice{Serial: i}.Append(nil))
		r.Control(loud, direct, make([]byte, 1400))
		r.Say(loud, notice.Ack{Serial: i})
		r.Event(tunnel.Established{Peer: loud, From: direct})
		r.Event(tunnel.Traffic{Peer: loud})
		r.Event(tunnel.Heard{Peer: loud})
		r.Event(tunnel.Silent{Peer: loud})
		r.Measure(loud)
	}
	if n := r.inbox.size(); n > 1024 {
		t.Errorf("%d tasks of one peer wait, want at most half of 1024 messages and one of each kind", n)
	}
	for i := range uint64(50) {
		r.Control(quiet, direct, notice.Notice{Serial: i}.Append(nil))
	}
	r.run()
	if n := r.hears(quiet, 49); n > 512+50+2 {
		t.Errorf("%d notices of the loud peer came before the quiet one's", n)
	}
	// The places are free again.
	r.Control(loud, direct, notice.Notice{Serial: 1 << 40}.Append(nil))
	r.Control(quiet, direct, notice.Notice{Serial: 1 << 41}.Append(nil))
	r.hears(quiet, 1<<41)
	if n := r.inbox.room.Size(); n != 0 {
		t.Errorf("%d places are held when all is done", n)
	}
}

// TestOrdersOfTheCoreDoNotPileUp repeats each order while nothing is carried out. What
// is carried out then is what holds at last.
func TestOrdersOfTheCoreDoNotPileUp(t *testing.T) {
	r := newRig(t)
	for i := range 10_000 {
		r.SetSelf(Self{})
		r.SetPeer(api.Peer{Key: loud})
		r.Measure(loud)
		if i%10 == 0 {
			r.DropPeer(loud)
			r.SetPeer(api.Peer{Key: loud})
		}
	}
	r.SetPeer(api.Peer{Key: quiet})
	r.Event(tunnel.Established{Peer: loud, From: direct})
	if n := len(r.inbox.at); n > 8 {
		t.Errorf("%d tasks wait, want one of each kind of each peer", n)
	}
	r.DropPeer(loud) // takes back what came before
	r.Event(tunnel.Established{Peer: quiet, From: direct})
	r.run()
	select {
	case in := <-r.notices:
		if s, ok := in.(overlay.Session); !ok || s.Key != quiet {
			t.Errorf("%+v is told, want the session of the peer that is left", in)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the session of the peer that is left is not told")
	}
	r.wire.mu.Lock()
	defer r.wire.mu.Unlock()
	if got := fmt.Sprint(r.wire.told); got != "[drop 1 set 2 set 2]" && got != "[set 2 set 2 drop 1]" {
		t.Errorf("the tunnel is told %s, want the last orders alone", got)
	}
}
