package socket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/wire"
)

// fakeOverlay is an overlay that checks that its arguments are valid.
type fakeOverlay struct{ t *testing.T }

func (d fakeOverlay) instance(id api.InstanceID) {
	if _, err := api.ParseInstanceID(string(id)); err != nil {
		d.t.Errorf("let in: %v", err)
	}
}

func (d fakeOverlay) Attach(_ context.Context, a wire.Attach) (wire.Attached, error) {
	d.instance(a.Instance)
	if len(a.NetNS) == 0 || a.NetNS[0] != '/' || len(a.Ports) > api.MaxPorts || a.BandwidthIn < 0 || a.BandwidthOut < 0 {
		d.t.Errorf("let in: %+v", a)
	}
	return wire.Attached{Key: a.Key}, nil
}

func (d fakeOverlay) Detach(_ context.Context, k wire.Key) error { d.instance(k.Instance); return nil }

func (d fakeOverlay) Drain(_ context.Context, k wire.Key) error { d.instance(k.Instance); return nil }

func (d fakeOverlay) SetReady(_ context.Context, k wire.Key, _ bool) error {
	d.instance(k.Instance)
	return nil
}
func (fakeOverlay) Attachments(context.Context) ([]wire.Attached, error) { return nil, nil }
func (fakeOverlay) View(context.Context, string) (any, error)            { return api.NetStatus{}, nil }
func (fakeOverlay) Down(context.Context, wire.NetDown) error             { return nil }
func (fakeOverlay) Link(context.Context, bool) error                     { return nil }
func (fakeOverlay) Metrics(http.ResponseWriter, *http.Request)           {}

func (d fakeOverlay) Trace(_ context.Context, from api.InstanceID, to string) (api.NetTrace, error) {
	d.instance(from)
	if to == "" || len(to) > 255 {
		d.t.Errorf("let in: %q", to)
	}
	return api.NetTrace{}, nil
}

func (d fakeOverlay) Capture(_ context.Context, c Capture, _ io.Writer) error {
	d.instance(c.Instance)
	if c.For < time.Second || c.For > MaxCaptureTime || c.Bytes <= 0 || c.Bytes > MaxCaptureBytes {
		d.t.Errorf("let in: %+v", c)
	}
	return nil
}

func (fakeOverlay) Events(_ context.Context, write func(wire.NetEvent) error) error {
	return errors.Join(write(wire.NetEvent{}), errors.New("over"))
}

// Every request is answered: with success, or with an error and its reason.
func FuzzRequests(f *testing.F) {
	attach, _ := json.Marshal(wire.Attach{Key: key, NetNS: "/proc/1/ns/net", Ports: []api.PortMap{{Host: 80, Instance: 8080, Protocol: "tcp"}}})
	f.Add("PUT", netsock.Attachments, attach)
	f.Add("DELETE", netsock.At(key, ""), []byte{})
	f.Add("POST", netsock.At(key, "/drain"), []byte{})
	f.Add("GET", netsock.Trace+"?from=acme%2Fa.b.c.d%230&to=web", []byte{})
	f.Add("GET", netsock.Capture+"?instance=acme%2Fa.b.c.d%230&seconds=60&bytes=1000", []byte{})
	f.Add("GET", netsock.Capture+"?instance=acme%2Fa.b.c.d%230&seconds=65535&bytes=-1", []byte{})
	f.Add("GET", netsock.Up, []byte{})
	f.Add("POST", netsock.Down, []byte(`{"boot":1,"seq":2,"whole":true,"routes":[{"service":"acme/a.b.c.d","peers":[{"key":"AAAA"}]}]}`))
	f.Add("POST", netsock.Link, []byte(`{"up":true}{"up":false}`))
	f.Add("PUT", netsock.Attachments, []byte(`{"key":{"instance":"acme/a.b.c.d#0","epoch":18446744073709551616}}`))
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://netmanager"+path, bytes.NewReader(body))
		if err != nil {
			return // no client can send it
		}
		w := httptest.NewRecorder()
		Handler(fakeOverlay{t}).ServeHTTP(w, r)
		if w.Code >= 500 && w.Code != http.StatusServiceUnavailable || w.Code == http.StatusOK && w.Body.Len() > 0 && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s %s: status %d with an unexpected body %s", method, path, w.Code, w.Body)
		}
	})
}
