package host

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
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// testTime bounds the wait for an event.
const testTime = time.Minute

const clusterID = api.ClusterID("munich")

func service(name string) api.ServiceID {
	return api.Tenant("acme").App("shop", "prod").Service(name, "prod")
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

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

// onDisk runs a server with a core on a disk, and returns what the core sends.
func onDisk(t *testing.T, core step.Core[overlay.Input]) (*Server, *disk, <-chan any) {
	t.Helper()
	d := &disk{Store: mem.New()}
	quiet := slog.New(slog.DiscardHandler)
	reads, ok := core.(*overlay.Core)
	if !ok {
		reads = overlay.New(overlay.Config{})
	}
	c := newCore(reads.View(), core, d, quiet, func(loop.Sample, bool) {})
	sent := make(chan any, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(ctx, func(envs []wire.Envelope) {
			for _, e := range envs {
				sent <- e.Msg
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return &Server{Core: c, Stream: NewStream(quiet), Peer: NewPeerCheck(nil, quiet), Transport: &Transport{}, Log: quiet}, d, sent
}

func aLease() overlay.Down {
	lease := wire.NetLease{Node: "n1", Ranges: wire.DefaultNetRanges(), Subnet: netip.MustParsePrefix("10.16.0.0/26")}
	return overlay.Down{NetDown: wire.NetDown{Seq: 1, Lease: &lease}}
}

// onFullDisk is onDisk with a disk that has become full.
func onFullDisk(t *testing.T, core step.Core[overlay.Input]) (*Server, *disk) {
	t.Helper()
	s, d, _ := onDisk(t, core)
	d.full.Store(true)
	if err := s.Core.loop.Do(t.Context(), aLease(), nil); !errors.Is(err, api.ErrFull) {
		t.Fatalf("lease on a full disk: %v, want ErrFull", err)
	}
	return s, d
}

// A workload's flow to an unknown address begins on a full disk too: the cluster is asked, and
// its answer goes to the kernel.
func TestFlowsToNewAddressesBeginWhileTheDiskIsFull(t *testing.T) {
	core := overlay.New(overlay.Config{})
	s, d, sent := onDisk(t, core)
	client, web := api.ServiceID("acme/shop.prod.client.v1"), api.ServiceID("acme/shop.prod.web.v1")
	attach := func(n int) overlay.Attach {
		return overlay.Attach{Attach: wire.Attach{Key: wire.Key{Instance: client.Instance(n), Epoch: 1}, NetNS: "/proc/1/ns/net"}}
	}
	self := overlay.Self{NetSelf: wire.NetSelf{Key: api.PeerKey{1}}}
	for _, in := range []overlay.Input{overlay.Start{}, self, overlay.Link{Up: true}, aLease(), attach(0)} {
		if err := s.Core.loop.Do(t.Context(), in, nil); err != nil {
			t.Fatal(err)
		}
	}
	var local netip.Addr
	for _, a := range core.View().List() { // no step runs
		local = a.Address
	}
	d.full.Store(true)
	if err := s.Core.loop.Do(t.Context(), attach(1), nil); !errors.Is(err, api.ErrFull) {
		t.Fatalf("attachment on a full disk: %v, want ErrFull", err)
	}
	await := func(what string, is func(any) bool) {
		t.Helper()
		for end := time.After(testTime); ; {
			select {
			case msg := <-sent:
				if is(msg) {
					return
				}
			case <-end:
				t.Fatalf("the core has not sent %s within %v", what, testTime)
			}
		}
	}
	remote := netip.MustParseAddr("10.30.0.1")
	want := wire.Subscription{Address: remote, For: client}
	s.Core.Post(overlay.Miss{Local: local, Remote: remote})
	await("the question to the cluster", func(msg any) bool {
		up, ok := msg.(wire.NetUp)
		return ok && slices.Contains(up.Subscribe, want)
	})
	peer := api.Peer{Key: api.PeerKey{2}, Rev: 2, Subnets: []netip.Prefix{netip.MustParsePrefix("10.16.0.64/26")}}
	answer := wire.NetDown{Seq: 2, Rev: 2, Records: wire.Records{Peers: []api.Peer{peer}, Routes: wire.RouteList{{
		Service: web, Rev: 2, Addresses: api.ServiceAddresses{RoundRobin: remote}, Peers: []api.Peer{peer},
		Backends: []api.Backend{{Instance: web.Instance(0), Epoch: 1, Address: netip.MustParseAddr("10.16.0.66"), Peer: peer.Key, State: api.BackendUp}},
	}}}}
	if err := s.Core.Learn(t.Context(), overlay.Down{NetDown: answer}); err != nil {
		t.Fatal(err)
	}
	await("the service", func(msg any) bool {
		c, ok := msg.(plane.Change)
		return ok && slices.ContainsFunc(c.SetServices, func(s plane.Service) bool { return s.Address == remote && len(s.Backends) == 1 })
	})
	await("the packet's release", func(msg any) bool { r, ok := msg.(overlay.Release); return ok && r.Remote == remote })
	if s.Core.loop.Stalled() == nil {
		t.Error("Stalled() = nil, want the error of the full disk")
	}
	d.full.Store(false)
	if err := s.Core.loop.Read(t.Context(), func() {}); err != nil {
		t.Fatal(err)
	}
}

// On a full disk the number of a start comes from the clock. The core sends nothing before the
// next start would get another number.
func TestTheCoreStartsOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d, sent := onDisk(t, overlay.New(overlay.Config{}))
		d.full.Store(true)
		began := time.Now()
		if err := s.Core.Start(t.Context()); err != nil || time.Since(began) < time.Second {
			t.Errorf("Start took %v: %v, want nil after at least a second", time.Since(began), err)
		}
		s.Core.Post(overlay.Self{NetSelf: wire.NetSelf{Key: api.PeerKey{1}}})
		s.Core.Post(overlay.Link{Up: true})
		synctest.Wait()
		for len(sent) > 0 {
			if up, ok := (<-sent).(wire.NetUp); ok {
				if up.Boot != uint64(began.Unix()) {
					t.Errorf("number of the start %d, want the time %d", up.Boot, began.Unix())
				}
				return
			}
		}
		t.Error("the core sent nothing to its cluster")
	})
}

func TestNamesAreAnsweredWhileTheDiskIsFull(t *testing.T) {
	s, _ := onFullDisk(t, overlay.New(overlay.Config{}))
	if _, err := (Names{Core: s.Core}).Lookup(t.Context(), netip.MustParseAddr("10.16.0.2"), "any.rr.web.prod.shop.prod.treeline."); err != nil {
		t.Errorf("Lookup on a full disk: %v, want nil", err)
	}
}

// recorder is a core that records its inputs. Only the cluster's messages make it save.
type recorder struct{ all []string }

func (h *recorder) Step(_ time.Time, in overlay.Input) (e step.Effects) {
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

// await returns the recorded inputs, sorted, when there are n.
func (h *recorder) await(t *testing.T, s *Server, n int) (all []string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); len(all) < n && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err := s.Core.loop.Read(t.Context(), func() { all = slices.Clone(h.all) }); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(all)
	return all
}

func at(s string) overlay.Self {
	return overlay.Self{NetSelf: wire.NetSelf{Endpoints: []netip.AddrPort{netip.MustParseAddrPort(s)}}}
}

// On a full disk the core steps every input that needs no save. An attachment needs one.
func TestTheCoreGoesOnWhileTheDiskIsFull(t *testing.T) {
	h := &recorder{}
	s, d := onFullDisk(t, h)
	k := wire.Key{Instance: "web.prod.shop.prod.0", Epoch: 1}
	s.Core.Post(overlay.Miss{})
	s.Core.Post(at("192.0.2.1:1"))
	s.Core.Post(overlay.Path{Key: api.PeerKey{1}, Kind: api.PathDirect})
	WorkloadEvents{s.Core, s.Stream, s.Log}.Exited(t.Context(), wire.Attach{Key: k})
	for what, err := range map[string]error{
		"message of the cluster": s.Down(t.Context(), wire.NetDown{}), "link": s.Link(t.Context(), false),
		"workload that listens": s.Core.Learn(t.Context(), overlay.Ready{Key: k}),
	} {
		if err != nil {
			t.Errorf("%s on a full disk: %v", what, err)
		}
	}
	if err := s.Core.loop.Do(t.Context(), overlay.Attach{}, nil); !errors.Is(err, api.ErrFull) || s.Core.loop.Offer(overlay.Detach{}) {
		t.Errorf("attachment on a full disk: %v, want ErrFull", err)
	}
	all := h.await(t, s, 6)
	if got := strings.Join(all, ", "); got != "link false, overlay.Exited, overlay.Miss, overlay.Ready, path 1 direct, self 192.0.2.1:1" {
		t.Errorf("inputs that the core stepped: %s", got)
	}
	if !d.full.Load() || s.Core.loop.Stalled() == nil {
		t.Error("Stalled() = nil, want the error of the full disk")
	}
}

// If too much waits to be saved, the core accepts no inputs. The newest of the inputs that are not
// repeated are kept for it.
func TestQueuedInputsAreHandledWhenTheDiskHasRoomAgain(t *testing.T) {
	h := &recorder{}
	s, d := onFullDisk(t, h)
	for refused := 0; refused < 2; {
		if refused++; s.Core.loop.Offer(overlay.Down{}) { // each needs a save
			refused = 0
		} else if err := s.Core.loop.Read(t.Context(), func() {}); err != nil { // the queue is empty now
			t.Fatal(err)
		}
	}
	for range 10_000 { // more than the capacity of the queue
		s.Core.Post(overlay.Miss{})
		s.Core.Post(overlay.Path{Key: api.PeerKey{1}, Kind: api.PathDirect})
		s.Core.Post(overlay.Path{Key: api.PeerKey{2}, Kind: api.PathRelay})
		s.Core.Post(at("192.0.2.1:1"))
	}
	s.Core.Post(overlay.Path{Key: api.PeerKey{1}, Kind: api.PathRelay})
	s.Core.Post(at("192.0.2.2:1"))
	s.Core.Post(overlay.Link{Up: false})
	if err := s.Link(t.Context(), false); !errors.Is(err, api.ErrFull) {
		t.Errorf("Link while an earlier input is kept: %v, want ErrFull", err)
	}
	if n := len(s.Core.kept); n != 4 {
		t.Errorf("%d inputs are kept, want 4", n)
	}
	d.full.Store(false)
	all := h.await(t, s, 4)
	if got := strings.Join(all, ", "); got != "link false, path 1 relay, path 2 relay, self 192.0.2.2:1" {
		t.Errorf("inputs that the core stepped: %s", got)
	}
	if !s.Core.repost() || len(s.Core.kept) != 0 {
		t.Errorf("%d inputs are still kept, want 0", len(s.Core.kept))
	}
}
