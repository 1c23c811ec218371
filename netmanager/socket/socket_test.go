package socket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/wire"
)

// fake returns configured results and records its calls.
type fake struct {
	fail   error
	asked  chan any
	goesOn bool // captures last until the reader is gone
}

func (f *fake) Attach(_ context.Context, a wire.Attach) (wire.Attached, error) {
	f.asked <- a
	return wire.Attached{Key: a.Key, Address: netip.MustParseAddr("10.16.0.2"), MTU: 1400}, f.fail
}
func (f *fake) Detach(_ context.Context, k wire.Key) error { f.asked <- k; return f.fail }
func (f *fake) Drain(_ context.Context, k wire.Key) error {
	f.asked <- "drain " + k.String()
	return f.fail
}

func (f *fake) SetReady(_ context.Context, k wire.Key, ready bool) error {
	f.asked <- fmt.Sprintf("%s ready %t", k, ready)
	return f.fail
}

func (f *fake) Attachments(context.Context) ([]wire.Attached, error) {
	return []wire.Attached{{Key: key}}, f.fail
}

func (f *fake) View(_ context.Context, path string) (any, error) {
	if path == netsock.Status {
		return api.NetStatus{Plane: "nft"}, f.fail
	}
	return []api.PeerStatus{{Node: "n1"}, {Node: "n2"}}, f.fail
}

func (f *fake) Trace(_ context.Context, from api.InstanceID, to string) (api.NetTrace, error) {
	return api.NetTrace{From: from, To: to}, f.fail
}

func (f *fake) Capture(ctx context.Context, c Capture, w io.Writer) error {
	f.asked <- c
	if f.fail != nil {
		return f.fail
	}
	_, err := io.WriteString(w, "pcap")
	if f.goesOn {
		<-ctx.Done()
	}
	return err
}

func (f *fake) Events(ctx context.Context, write func(wire.NetEvent) error) error {
	if f.fail != nil {
		return f.fail
	}
	if err := write(wire.NetEvent{Ready: &wire.NetReady{Ready: true}}); err != nil {
		return err
	}
	if err := write(wire.NetEvent{Up: []byte(`{"boot":"a \u2028 line"}`)}); err != nil {
		return err
	}
	<-ctx.Done()
	f.asked <- "events ended"
	return nil
}
func (f *fake) Down(_ context.Context, d wire.NetDown) error { f.asked <- d.Seq; return f.fail }
func (f *fake) Metrics(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "treeline_net_ready 1\n")
}

func (f *fake) Link(_ context.Context, up bool) error { f.asked <- up; return f.fail }

var key = wire.Key{Instance: "acme/lab/shop.prod.web.prod#3", Epoch: api.EpochOf(17, 2)}

func start(t *testing.T) (*fake, *netsock.Client, string) {
	t.Helper()
	f := &fake{asked: make(chan any, 10)}
	path := filepath.Join(shortDir(t), "sub", "net.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- daemon.Serve(ctx, ln, Handler(f), nil) }()
	t.Cleanup(func() { cancel(); <-done })
	return f, netsock.New(path), path
}

func TestRequestsReachTheOverlay(t *testing.T) {
	f, c, _ := start(t)
	a := wire.Attach{Key: key, NetNS: "/proc/1/ns/net", Ports: []api.PortMap{{Host: 80, Instance: 8080, Protocol: "tcp"}}}
	at, err := c.Attach(t.Context(), a)
	if err != nil || at.Address != netip.MustParseAddr("10.16.0.2") || at.Key != key || at.MTU != 1400 {
		t.Errorf("Attach returned %+v, %v, want the attachment of the fake", at, err)
	}
	if got := (<-f.asked).(wire.Attach); got.Key != key || !slices.Equal(got.Ports, a.Ports) || got.NetNS != a.NetNS {
		t.Errorf("asked %+v", got)
	}
	for _, call := range []struct {
		err  error
		want any
	}{
		{c.Detach(t.Context(), key), key},
		{c.Drain(t.Context(), key), "drain " + key.String()},
		{c.SetReady(t.Context(), key, true), key.String() + " ready true"},
		{c.SetReady(t.Context(), key, false), key.String() + " ready false"},
		{c.Down(t.Context(), []byte(`{"seq":9,"of a later version":true}`)), uint64(9)},
		{c.Link(t.Context(), true), true},
	} {
		if got := <-f.asked; call.err != nil || got != call.want {
			t.Errorf("asked %v, want %v, %v", got, call.want, call.err)
		}
	}
	if all, err := c.Attachments(t.Context()); err != nil || len(all) != 1 || all[0].Key != key {
		t.Errorf("Attachments returned %v, %v, want one with the key", all, err)
	}
	if s, err := c.Status(t.Context()); err != nil || s.Plane != "nft" {
		t.Errorf("Status returned %v, %v, want the plane nft", s, err)
	}
}

func TestErrorsKeepTheirKind(t *testing.T) {
	f, c, _ := start(t)
	for _, kind := range []error{api.ErrUnavailable, api.ErrConflict, api.ErrNotFound, api.ErrFull} {
		f.fail = kind
		_, err := c.Attach(t.Context(), wire.Attach{Key: key, NetNS: "/ns"})
		<-f.asked
		if !errors.Is(err, kind) {
			t.Errorf("%v is told as %v", kind, err)
		}
		if err := c.Events(t.Context(), nil); !errors.Is(err, kind) {
			t.Errorf("events: %v is told as %v", kind, err)
		}
	}
	if err := netsock.New("/nonexistent/net.sock").Link(t.Context(), true); !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "/nonexistent/net.sock") {
		t.Errorf("nobody there: %v", err)
	}
}

func TestEventsAreStreamed(t *testing.T) {
	f, c, _ := start(t)
	enough := errors.New("enough")
	var got []wire.NetEvent
	err := c.Events(t.Context(), func(e wire.NetEvent) error {
		if got = append(got, e); len(got) == 2 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || !got[0].Ready.Ready || string(got[1].Up) != `{"boot":"a \u2028 line"}` {
		t.Errorf("events ended with %v, message %s, want the two events of the fake", err, got[1].Up)
	}
	if s := <-f.asked; s != "events ended" {
		t.Errorf("asked %v", s)
	}
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	f, c, path := start(t)
	for name, a := range map[string]wire.Attach{
		"no instance":    {NetNS: "/ns"},
		"odd instance":   {Key: wire.Key{Instance: "../../etc#0"}, NetNS: "/ns"},
		"no netns":       {Key: key},
		"relative netns": {Key: key, NetNS: "ns"},
		"port 0":         {Key: key, NetNS: "/ns", Ports: []api.PortMap{{Host: 0, Instance: 1, Protocol: "tcp"}}},
		"odd protocol":   {Key: key, NetNS: "/ns", Ports: []api.PortMap{{Host: 1, Instance: 1, Protocol: "icmp"}}},
		"many ports":     {Key: key, NetNS: "/ns", Ports: make([]api.PortMap, api.MaxPorts+1)},
		"negative":       {Key: key, NetNS: "/ns", BandwidthIn: -1},
	} {
		if _, err := c.Attach(t.Context(), a); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("attach with %s: %v, want ErrInvalid", name, err)
		}
	}
	if _, err := c.Attach(t.Context(), wire.Attach{Key: key, NetNS: "/" + strings.Repeat("x", netsock.MaxRequest)}); !errors.Is(err, api.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if err := c.Down(t.Context(), []byte("{}{}")); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("two documents: %v", err)
	}
	if _, err := c.Open(t.Context(), "/v1/down"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a path that is no view: %v", err)
	}
	for _, q := range []string{"", "?instance=x", "?instance=" + esc(key) + "&seconds=0", "?instance=" + esc(key) + "&bytes=-1"} {
		if _, err := c.Open(t.Context(), netsock.Capture+q); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("capture %q: %v", q, err)
		}
	}
	if _, err := Listen(path); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a second netmanager: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	if len(f.asked) > 0 {
		t.Errorf("%v got in", <-f.asked)
	}
}

func esc(k wire.Key) string { return url.QueryEscape(string(k.Instance)) }

func TestCapture(t *testing.T) {
	f, c, _ := start(t)
	r, err := c.Open(t.Context(), netsock.Capture+"?instance="+esc(key)+"&seconds=5&bytes=1000")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if text, err := io.ReadAll(r); string(text) != "pcap" || err != nil {
		t.Errorf("the capture is %q, %v, want pcap", text, err)
	}
	if want := (Capture{key.Instance, 5 * time.Second, 1000}); <-f.asked != want {
		t.Errorf("want %v", want)
	}
	f.fail = api.ErrNotFound
	if _, err := c.Open(t.Context(), netsock.Capture+"?instance="+esc(key)); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("of nobody: %v", err)
	}
}

// The number of captures is limited per tenant and in total.
func TestCapturesAreBounded(t *testing.T) {
	f, c, _ := start(t)
	f.goesOn = true
	open := func(tenant string) (io.ReadCloser, error) {
		return c.Open(t.Context(), netsock.Capture+"?instance="+url.QueryEscape(tenant+"/shop.prod.web.prod#0"))
	}
	began := map[string]io.ReadCloser{}
	for i := range MaxCaptures {
		tenant := fmt.Sprintf("tenant%d", i/MaxOfTenant)
		r, err := open(tenant)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		began[tenant] = r
		if i == MaxOfTenant-1 {
			if _, err := open(tenant); !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "2 captures of tenant0 run on this node") {
				t.Errorf("one more of the tenant's: %v", err)
			}
		}
	}
	if _, err := open("another"); !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "4 captures run on this node") {
		t.Errorf("one more: %v", err)
	}
	began["tenant0"].Close()
	for { // there is no event for the end of the capture
		r, err := open("tenant0")
		if err == nil {
			r.Close()
			return
		}
		if !errors.Is(err, api.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

// A socket that a crash left is replaced.
func TestListenAfterACrash(t *testing.T) {
	path := filepath.Join(shortDir(t), "net.sock")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ln.(listener).SetUnlinkOnClose(false)
	ln.Close()
	if ln, err = Listen(path); err != nil {
		t.Fatal(err)
	}
	ln.Close()
}

func TestAPathThatIsTooLongIsInTheError(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("d", 100), "net.sock")
	if _, err := Listen(path); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "at most 107") {
		t.Error(err)
	}
}

func TestALongListIsOneDocument(t *testing.T) {
	for _, n := range []int{0, 1, 3} {
		w := httptest.NewRecorder()
		list(w, reflect.ValueOf(slices.Repeat([]int{7}, n)))
		var got struct{ Items []int }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Items == nil || len(got.Items) != n {
			t.Errorf("%d items: %s, %v", n, w.Body, err)
		}
	}
	w := httptest.NewRecorder()
	Handler(&fake{fail: api.ErrUnavailable}).ServeHTTP(w, httptest.NewRequest("GET", netsock.Peers, nil))
	if w.Code != 503 {
		t.Errorf("a list that fails has status %d, want 503", w.Code)
	}
}

// Other files at the path are not removed: an operator may have configured the wrong path, or another
// netmanager may be too busy to answer.
func TestListenRemovesNothingButASocketWhereNobodyListens(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		path := filepath.Join(shortDir(t), "node.json")
		if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		if ln, err := Listen(path); !errors.Is(err, api.ErrConflict) {
			t.Errorf("listened where a file was: %v, %v", ln, err)
		}
		if text, err := os.ReadFile(path); string(text) != "mine" {
			t.Errorf("the file is gone: %v", err)
		}
	})
	t.Run("full backlog", func(t *testing.T) {
		path := filepath.Join(shortDir(t), "s")
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
			t.Fatal(err)
		}
		for { // until the backlog is full
			c, err := net.DialTimeout("unix", path, time.Second)
			if err != nil {
				break
			}
			defer c.Close()
		}
		if ln, err := Listen(path); !errors.Is(err, api.ErrConflict) {
			t.Errorf("listened where another one does: %v, %v", ln, err)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("its socket is gone: %v", err)
		}
	})
}

// shortDir returns a directory with a short path, because the length of a socket's path is limited.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestEveryNodeRouteIsServed(t *testing.T) {
	h := Handler(&fake{})
	for _, r := range api.NodeRoutes {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", r.Netmanager, nil))
		if err := json.Unmarshal(w.Body.Bytes(), r.New()); w.Code != 200 || err != nil {
			t.Errorf("GET %s: status %d and %q (%v), want 200 and an answer of type %T", r.Netmanager, w.Code, w.Body, err, r.New())
		}
	}
}
