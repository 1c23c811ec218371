package wiring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
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

// onDisk is a manager around a core with a disk, and what it sends.
func onDisk(t *testing.T, core step.Core[overlay.Input]) (*manager, *disk, <-chan any) {
	t.Helper()
	d := &disk{Store: mem.New()}
	quiet := slog.New(slog.DiscardHandler)
	m := &manager{core: overlay.New(overlay.Config{}), log: quiet, checker: &checker{log: quiet}, uplink: &uplink{log: quiet}}
	if c, ok := core.(*overlay.Core); ok {
		m.core = c
	}
	sent := make(chan any, 1000)
	m.loop = loop.New(core, d, func(envs []api.Envelope) {
		for _, e := range envs {
			sent <- e.Msg
		}
	}, m.loopOptions(quiet))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.loop.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return m, d, sent
}

func aLease() overlay.Down {
	lease := api.NetLease{Node: "n1", Ranges: api.DefaultNetRanges(), Subnet: netip.MustParsePrefix("10.16.0.0/26")}
	return overlay.Down{NetDown: api.NetDown{Seq: 1, Lease: &lease}}
}

// onFullDisk is one whose disk has become full.
func onFullDisk(t *testing.T, core step.Core[overlay.Input]) (*manager, *disk) {
	t.Helper()
	m, d, _ := onDisk(t, core)
	d.full.Store(true)
	if err := m.loop.Do(t.Context(), aLease(), nil); !errors.Is(err, api.ErrFull) {
		t.Fatalf("a lease on a full disk: %v", err)
	}
	return m, d
}

// A workload's flow to an address that the node has not heard of begins on a full disk
// as on any other: the cluster is asked, and its answer goes to the kernel.
func TestAFlowToANewAddressBeginsWhileTheDiskIsFull(t *testing.T) {
	core := overlay.New(overlay.Config{})
	m, d, sent := onDisk(t, core)
	client, web := api.ServiceID("acme/shop.prod.client.v1"), api.ServiceID("acme/shop.prod.web.v1")
	attach := func(n int) overlay.Attach {
		return overlay.Attach{Attach: api.Attach{Key: api.Key{Instance: client.Instance(n), Epoch: 1}, NetNS: "/proc/1/ns/net"}}
	}
	self := overlay.Self{NetSelf: api.NetSelf{Key: api.PeerKey{1}}}
	for _, in := range []overlay.Input{overlay.Start{}, self, overlay.Link{Up: true}, aLease(), attach(0)} {
		if err := m.loop.Do(t.Context(), in, nil); err != nil {
			t.Fatal(err)
		}
	}
	var local netip.Addr
	for _, a := range core.List() { // nobody steps it
		local = a.Address
	}
	d.full.Store(true)
	if err := m.loop.Do(t.Context(), attach(1), nil); !errors.Is(err, api.ErrFull) {
		t.Fatalf("an attachment on a full disk: %v", err)
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
				t.Fatalf("never came: %s", what)
			}
		}
	}
	remote := netip.MustParseAddr("10.30.0.1")
	want := api.Want{Address: remote, For: client}
	m.post(overlay.Miss{Local: local, Remote: remote})
	await("the question", func(msg any) bool {
		up, ok := msg.(api.NetUp)
		return ok && slices.Contains(up.Add, want)
	})
	peer := api.Peer{Key: api.PeerKey{2}, Rev: 2, Subnets: []netip.Prefix{netip.MustParsePrefix("10.16.0.64/26")}}
	answer := api.NetDown{Seq: 2, Rev: 2, Peers: []api.Peer{peer}, Routes: api.RouteList{{
		Service: web, Rev: 2, Addresses: api.ServiceAddresses{RoundRobin: remote}, Peers: []api.Peer{peer},
		Backends: []api.Backend{{Instance: web.Instance(0), Epoch: 1, Address: netip.MustParseAddr("10.16.0.66"), Peer: peer.Key, State: api.BackendUp}},
	}}}
	if err := m.learn(t.Context(), overlay.Down{NetDown: answer}); err != nil {
		t.Fatal(err)
	}
	await("the service", func(msg any) bool {
		c, ok := msg.(plane.Change)
		return ok && slices.ContainsFunc(c.SetServices, func(s plane.Service) bool { return s.Address == remote && len(s.Backends) == 1 })
	})
	await("the packet's release", func(msg any) bool { r, ok := msg.(overlay.Release); return ok && r.Remote == remote })
	if m.loop.Stalled() == nil {
		t.Error("the disk was not full")
	}
	d.full.Store(false)
	if err := m.loop.Read(t.Context(), func() {}); err != nil {
		t.Fatal(err)
	}
}

// A real disk, which is full: a workload reaches what its node has never heard of, a
// netmanager that is killed comes back and goes on with it, and is ready when there is room.
func TestAFullDiskStopsNoFlow(t *testing.T) {
	w := newWorld(t, 0)
	for i := range 2 {
		w.host(i, w.tag+"-sw", nil)
	}
	h := w.hosts[0]
	data := filepath.Join(h.dir, "net")
	if err := errors.Join(os.Mkdir(data, 0o700), unix.Mount("tmpfs", data, "tmpfs", 0, "size=4m")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(data, unix.MNT_DETACH) }) // who has files there ends later
	for _, h := range w.hosts {
		h.start()
	}
	client := h.run("client", 0, 1)
	for n := range 2 {
		w.hosts[1].run(fmt.Sprint("web", n), 0, 2+n).serve(80)
	}
	ballast := must[*os.File](t)(os.Create(filepath.Join(data, "ballast")))
	defer ballast.Close()
	for err := error(nil); err == nil; {
		_, err = ballast.Write(make([]byte, 4096))
	}
	attach := func(n int) error {
		ctx, cancel := context.WithTimeout(t.Context(), testTime)
		defer cancel()
		k := api.Key{Instance: service("more").Instance(n), Epoch: 1}
		_, err := h.sock.Attach(ctx, api.Attach{Key: k, NetNS: nsPath(w.netns(fmt.Sprint("more", n)))})
		return err
	}
	n, err := 0, error(nil)
	for ; err == nil && n < 50; n++ { // the store has some room within its file
		err = attach(n)
	}
	if !errors.Is(err, api.ErrFull) {
		t.Fatalf("attachment %d on a full disk: %v", n, err)
	}
	if who := client.ask(vip(2), 80); who != string(service("web0").Instance(0)) {
		t.Errorf("%s answered", who)
	}
	h.kill()
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		h.start()
	}()
	if who := client.ask(vip(3), 80); who != string(service("web1").Instance(0)) {
		t.Errorf("%s answered", who)
	}
	if err := ballast.Truncate(0); err != nil {
		t.Fatal(err)
	}
	<-ready
	if err := attach(n); err != nil {
		t.Errorf("an attachment when there is room again: %v", err)
	}
}

// A life that begins on a full disk has its number by the clock. It says nothing before the
// next one's would be another.
func TestALifeBeginsOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d, sent := onDisk(t, overlay.New(overlay.Config{}))
		d.full.Store(true)
		began := time.Now()
		if err := m.begin(t.Context()); err != nil || time.Since(began) < time.Second {
			t.Errorf("it began after %v: %v", time.Since(began), err)
		}
		m.post(overlay.Self{NetSelf: api.NetSelf{Key: api.PeerKey{1}}})
		m.post(overlay.Link{Up: true})
		synctest.Wait()
		for len(sent) > 0 {
			if up, ok := (<-sent).(api.NetUp); ok {
				if up.Boot != uint64(began.Unix()) {
					t.Errorf("its number is %d, began at %d", up.Boot, began.Unix())
				}
				return
			}
		}
		t.Error("it says nothing to its cluster")
	})
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

// await gives what the core has heard, sorted, once it is as much as that.
func (h *heard) await(t *testing.T, m *manager, n int) (all []string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); len(all) < n && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err := m.loop.Read(t.Context(), func() { all = slices.Clone(h.all) }); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(all)
	return all
}

func at(s string) overlay.Self {
	return overlay.Self{NetSelf: api.NetSelf{Endpoints: []netip.AddrPort{netip.MustParseAddrPort(s)}}}
}

// What need not be saved is heard on a full disk as well; an attachment has to be.
func TestTheCoreGoesOnWhileTheDiskIsFull(t *testing.T) {
	h := &heard{}
	m, d := onFullDisk(t, h)
	k := api.Key{Instance: "web.prod.shop.prod.0", Epoch: 1}
	m.post(overlay.Miss{})
	m.post(at("192.0.2.1:1"))
	m.post(overlay.Path{Key: api.PeerKey{1}, Kind: api.PathDirect})
	m.exited(t.Context(), api.Attach{Key: k})
	for what, err := range map[string]error{
		"what the cluster says": m.Down(t.Context(), api.NetDown{}), "the link": m.Link(t.Context(), false),
		"that a workload listens": m.learn(t.Context(), overlay.Ready{Key: k}),
	} {
		if err != nil {
			t.Errorf("%s on a full disk: %v", what, err)
		}
	}
	if err := m.loop.Do(t.Context(), overlay.Attach{}, nil); !errors.Is(err, api.ErrFull) || m.loop.Offer(overlay.Detach{}) {
		t.Errorf("an attachment on a full disk: %v", err)
	}
	all := h.await(t, m, 6)
	if got := strings.Join(all, ", "); got != "link false, overlay.Exited, overlay.Miss, overlay.Ready, path 1 direct, self 192.0.2.1:1" {
		t.Errorf("heard: %s", got)
	}
	if !d.full.Load() || m.loop.Stalled() == nil {
		t.Error("the disk was not full")
	}
}

// So much may wait to be saved that the core hears nothing any more. What nobody says again
// is kept for it then.
func TestTheLastWordIsHeardWhenTheDiskHasRoomAgain(t *testing.T) {
	h := &heard{}
	m, d := onFullDisk(t, h)
	for refused := 0; refused < 2; {
		if refused++; m.loop.Offer(overlay.Down{}) { // each is to be saved
			refused = 0
		} else if err := m.loop.Read(t.Context(), func() {}); err != nil { // the queue is empty now
			t.Fatal(err)
		}
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
	all := h.await(t, m, 4)
	if got := strings.Join(all, ", "); got != "link false, path 1 relay, path 2 relay, self 192.0.2.2:1" {
		t.Errorf("heard: %s", got)
	}
	if !m.repost() || len(m.lasting.kept) != 0 {
		t.Errorf("%d words are kept still", len(m.lasting.kept))
	}
}
