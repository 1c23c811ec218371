package clusterlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// acking is an Owner that acknowledges each report at once.
type acking struct{ l *Link }

func (a acking) Do(_ context.Context, in root.Input, _ func()) error {
	r := in.(root.Report)
	a.l.Send(wire.Envelope{To: r.Cluster.Addr(), Msg: wire.ReportAck{Boot: r.Boot, Seq: r.Seq}})
	return nil
}

func (acking) Read(context.Context, func()) error { return nil }

func reporting() (*Link, func(id api.ClusterID, body io.Reader) error) {
	l := New(Options{})
	l.opt.Owner = acking{l}
	return l, func(id api.ClusterID, body io.Reader) error {
		return l.report(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/cluster/report", body), id)
	}
}

// A report above the limit is refused before it takes much more memory than its size.
func TestReportsAreMeasuredBeforeTheyAreDecoded(t *testing.T) {
	_, report := reporting()
	if err := report("munich", strings.NewReader(`{"cluster":"munich","boot":1,"seq":1}`)); err != nil {
		t.Fatal(err)
	}
	for name, part := range map[string][3]string{
		"observed": {`"observed":[`, `{},`, `{}]`}, "wants": {`"net":{"wants":[`, `{},`, `{}]}`}, "hull": {`"aggregate":{"hull":[`, `{},`, `{}]}`},
		"words": {`"aggregate":{"slots":[{"areas":[`, `"",`, `""]}]}`},
	} {
		body := `{"cluster":"munich",` + part[0] + strings.Repeat(part[1], (16<<20-100)/3) + part[2] + `}`
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := report("munich", strings.NewReader(body))
		runtime.ReadMemStats(&after)
		if used := (after.TotalAlloc - before.TotalAlloc) >> 20; !errors.Is(err, api.ErrTooLarge) || used > 256 {
			t.Errorf("%s of %d MiB: %v after %d MiB", name, len(body)>>20, err, used)
		}
	}
}

// Reports of one cluster whose bodies do not end take only that cluster's places.
func TestReportsOfOneClusterLeaveRoomForOthers(t *testing.T) {
	_, report := reporting()
	var ends []*io.PipeWriter
	slow := make(chan error, 2)
	for range 2 {
		body, w := io.Pipe()
		go func() { slow <- report("loud", body) }()
		if _, err := io.WriteString(w, `{"cluster":"loud",`); err != nil { // returns once it is read
			t.Fatal(err)
		}
		ends = append(ends, w)
	}
	if err := report("loud", strings.NewReader(`{"cluster":"loud","boot":1,"seq":9}`)); !errors.Is(err, api.ErrTooMany) {
		t.Errorf("a third report at once: %v, want ErrTooMany", err)
	}
	if err := report("quiet", strings.NewReader(`{"cluster":"quiet","boot":1,"seq":1}`)); err != nil {
		t.Errorf("another cluster's report: %v", err)
	}
	for i, w := range ends {
		if _, err := fmt.Fprintf(w, `"boot":1,"seq":%d}`, i+1); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
	}
	for range ends {
		if err := <-slow; err != nil {
			t.Errorf("a slow report: %v", err)
		}
	}
	if err := report("loud", strings.NewReader(`{"cluster":"loud","boot":1,"seq":9}`)); err != nil {
		t.Errorf("a report afterwards: %v", err)
	}
}
