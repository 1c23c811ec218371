package clusterlink

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func at(id api.InstanceID, e api.Epoch, s api.State) api.Observed {
	return api.Observed{Instance: id, Epoch: e, State: s}
}

func TestWaitingReportsAreMerged(t *testing.T) {
	o := newOutbox()
	info := &api.NodeInfo{ID: "n1"}
	o.NodeReport(wire.NodeReport{Boot: 1, Seq: 1, Gen: 1, Whole: true, Info: info, Observed: []api.Observed{at("a", 1, api.Created), at("b", 1, api.Running)}})
	o.Alive(wire.Alive{Seq: 1})
	o.NodeReport(wire.NodeReport{Boot: 1, Seq: 2, Gen: 2, Observed: []api.Observed{at("a", 1, api.Running), at("c", 1, api.Created)}})
	o.Alive(wire.Alive{Seq: 2})
	r, a := o.take()
	if !r.Whole || r.Info != info || r.Seq != 2 || r.Gen != 2 || len(r.Observed) != 3 || r.Observed[0].State != api.Running || a.Seq != 2 {
		t.Errorf("take: got %+v, %+v, want a merged whole report and the last heartbeat", r, a)
	}
	if r, a := o.take(); r != nil || a != nil {
		t.Errorf("second take: got %+v, %+v, want nothing", r, a)
	}
}

func TestWholeReportReplacesWaitingReports(t *testing.T) {
	part := wire.NodeReport{Boot: 1, Seq: 1, Observed: []api.Observed{at("gone", 1, api.Terminated)}}
	whole := wire.NodeReport{Boot: 1, Seq: 2, Whole: true, Observed: []api.Observed{at("a", 1, api.Running)}}
	if m := merge(part, whole); len(m.Observed) != 1 || m.Observed[0].Instance != "a" {
		t.Errorf("merge with a whole report: got %+v, want only the whole one", m)
	}
	next := wire.NodeReport{Boot: 2, Seq: 1, Observed: []api.Observed{at("a", 2, api.Created)}}
	if m := merge(whole, next); m.Whole || len(m.Observed) != 1 {
		t.Errorf("merge of reports with different boot numbers: got %+v, want only the later one", m)
	}
}
