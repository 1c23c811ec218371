package wiring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/netmanager/overlay"
)

// disk is a store on a disk that may be full.
type disk struct {
	store.Store
	full atomic.Bool
}

func (d *disk) Save(ctx context.Context, docs []store.Doc) error {
	if d.full.Load() {
		return api.ErrFull
	}
	return d.Store.Save(ctx, docs)
}

// onFullDisk is a manager around a core whose disk has become full.
func onFullDisk(t *testing.T, core step.Core[overlay.Input]) (*manager, *disk) {
	t.Helper()
	d := &disk{Store: mem.New()}
	m := &manager{core: overlay.New(overlay.Config{})}
	if c, ok := core.(*overlay.Core); ok {
		m.core = c
	}
	m.loop = loop.New(core, d, func([]api.Envelope) {}, m.loopOptions(slog.New(slog.DiscardHandler)))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.loop.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	d.full.Store(true)
	lease := api.NetLease{Node: "n1", Ranges: api.DefaultNetRanges(), Subnet: netip.MustParsePrefix("10.16.0.0/26")}
	if err := m.loop.Do(ctx, overlay.Down{NetDown: api.NetDown{Seq: 1, Lease: &lease}}, nil); !errors.Is(err, api.ErrFull) {
		t.Fatalf("a lease on a full disk: %v", err)
	}
	return m, d
}

func TestNamesAreAnsweredWhileTheDiskIsFull(t *testing.T) {
	m, _ := onFullDisk(t, overlay.New(overlay.Config{}))
	if _, err := (nameService{m}).Lookup(t.Context(), netip.MustParseAddr("10.16.0.2"), "any.rr.web.prod.shop.prod.treeline."); err != nil {
		t.Errorf("a name: %v", err)
	}
}

// heard is a core that writes down what it is told; only what the cluster says is to
// be saved.
type heard struct{ all []string }

func (h *heard) Step(_ time.Time, in overlay.Input) (e step.Effects) {
	switch in := in.(type) {
	case overlay.Down:
		e.Save = []store.Doc{{Kind: "lease", Key: "lease", Version: 1, Data: []byte("{}")}}
	case overlay.Path:
		h.all = append(h.all, fmt.Sprintf("path %d %s", in.Key[0], in.Kind))
	case overlay.Self:
		h.all = append(h.all, "self "+in.Endpoints[0].String())
	case overlay.Link:
		h.all = append(h.all, fmt.Sprintf("link %t", in.Up))
	default:
		h.all = append(h.all, fmt.Sprintf("%T", in))
	}
	return e
}

func TestTheLastWordIsHeardWhenTheDiskHasRoomAgain(t *testing.T) {
	h := &heard{}
	m, d := onFullDisk(t, h)
	at := func(s string) overlay.Self {
		return overlay.Self{NetSelf: api.NetSelf{Endpoints: []netip.AddrPort{netip.MustParseAddrPort(s)}}}
	}
	for range 10_000 { // more than the queue takes
		m.post(overlay.Miss{})
		m.post(overlay.Path{Key: api.PeerKey{1}, Kind: api.PathDirect})
		m.post(overlay.Path{Key: api.PeerKey{2}, Kind: api.PathRelay})
		m.post(at("192.0.2.1:1"))
	}
	m.post(overlay.Path{Key: api.PeerKey{1}, Kind: api.PathRelay})
	m.post(at("192.0.2.2:1"))
	m.post(overlay.Link{Up: false})
	if err := m.Link(t.Context(), false); !errors.Is(err, api.ErrFull) {
		t.Errorf("a word of the link overtook one that is kept: %v", err)
	}
	if n := len(m.lasting.kept); n != 4 {
		t.Errorf("%d words are kept, want the last of 4", n)
	}
	d.full.Store(false)
	var all []string
	for end := time.Now().Add(time.Minute); len(all) < 4 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err := m.loop.Read(t.Context(), func() { all = slices.Clone(h.all) }); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(all)
	if got := strings.Join(all, ", "); got != "link false, path 1 relay, path 2 relay, self 192.0.2.2:1" {
		t.Errorf("heard: %s", got)
	}
	if err := m.repost(); err != nil || len(m.lasting.kept) != 0 {
		t.Errorf("%d words are kept still: %v", len(m.lasting.kept), err)
	}
}
