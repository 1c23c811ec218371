package sched_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func TestLinksOf(t *testing.T) {
	m := &api.Microservice{
		Constraints: []api.Constraint{
			{Type: "latency", Area: "Munich", Threshold: 20, Rigidness: 10},
			{Type: "geo", Area: "de", Threshold: 100, ConvergenceTime: 9},
			{Type: "latency", Service: "pre.prod", Threshold: 7.5, ConvergenceTime: 2},
			{Type: "latency", Target: "198.51.100.7:443", Threshold: 30},
		},
		Connectivity: []api.Connectivity{{Target: "db", Constraints: []api.LinkConstraint{
			{Type: "bandwidth", Threshold: 10}, {Type: "latency", Threshold: 5, Rigidness: 3}, {Type: "geo", Threshold: 120},
		}}},
	}
	const ms, s = time.Millisecond, time.Second
	want := []sched.Link{
		{Area: "munich", RTT: 20 * ms, Rigidness: 10 * s, Convergence: 5 * s},
		{Service: "pre.prod", RTT: 7500 * time.Microsecond, Rigidness: 60 * s, Convergence: 2 * s},
		{User: "198.51.100.7:443", RTT: 30 * ms, Rigidness: 60 * s, Convergence: 5 * s},
		{Service: "db", Relaxable: true, RTT: 5 * ms, Rigidness: 3 * s, Convergence: 5 * s},
		{Service: "db", Relaxable: true, Km: 120, Rigidness: 60 * s, Convergence: 5 * s},
	}
	if got := sched.LinksOf(m); !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v", got)
	}
	if b := want[1].Bound(api.Position{}); b.To != "pre.prod" || b.RTT != want[1].RTT || len(b.Points) != 1 || b.Unknown != "" {
		t.Errorf("the bound is %+v, want the round trip to pre.prod with one point", b)
	}
	if b := want[4].Unknown("asked"); b.Km != 120 || b.Unknown != "asked" || want[4].Constraint() != sched.ConstraintGeo {
		t.Errorf("the unknown bound is %+v, want 120 km and the reason", b)
	}
	if d := sched.ConvergenceOf(m); d != 2*s {
		t.Errorf("it may take %v", d)
	}
	for constraint, want := range map[string]time.Duration{
		sched.ConstraintLatency: 3 * s, sched.ConstraintGeo: 60 * s, sched.ConstraintArea: 60 * s,
		sched.ConstraintMemory: 60 * s, sched.ConstraintBandwidthIn: 60 * s,
	} {
		if got, shared := sched.RigidnessOf(m, constraint); got != want || shared {
			t.Errorf("%s is borne for %v", constraint, got)
		}
	}
}

func TestNamesOfServices(t *testing.T) {
	of, id := api.ServiceID("acme/shop.prod.front.web"), api.ServiceID("acme/shop.prod.db.data")
	for name, want := range map[string]bool{"db.data": true, "db": true, "db.web": false, "d": false, "db.data.x": false, "": false} {
		if got := (sched.Link{Service: name}).Names(of, id); got != want {
			t.Errorf("link to %q names the service: %v, want the opposite", name, got)
		}
	}
	if (sched.Link{Service: "db.data"}).Names("acme/shop.test.front.web", id) {
		t.Error("a service of another application is named")
	}
	if a := (sched.AntiAffinity{Services: []string{"x", "db"}}); !a.Names(of, id) {
		t.Error("the second is not named")
	}
}

func TestSpreadsAndAntiAffinities(t *testing.T) {
	m := &api.Microservice{Constraints: []api.Constraint{
		{Type: "spread"}, {Type: "spread", By: "zone", Limit: 3}, {Type: "apart", Services: []string{"db"}},
	}}
	if got := sched.SpreadsOf(m); !reflect.DeepEqual(got, []sched.Spread{{"node", 1}, {"zone", 3}}) {
		t.Errorf("SpreadsOf returned %v", got)
	}
	if got := sched.AntiAffinitiesOf(m); !reflect.DeepEqual(got, []sched.AntiAffinity{{"node", []string{"db"}}}) {
		t.Errorf("AntiAffinitiesOf returned %v", got)
	}
	labels := map[string]string{"zone": "a"}
	for by, want := range map[string]string{"node": "n1", "cluster": "c1", "zone": "a", "rack": ""} {
		if got := sched.DomainOf(by, "c1", "n1", labels); got != want {
			t.Errorf("by %s: %q", by, got)
		}
	}
}

func TestTheRequestHasAllConstraintsOfTheSLA(t *testing.T) {
	req := sched.RequestFor("i", &api.Microservice{
		VGPUs: 1, Devices: []api.Device{{Name: "acme.com/lidar", Count: 2}}, Priority: "urgent", Storage: 100, BandwidthIn: 3,
		Constraints: []api.Constraint{
			{Type: "addons", Needs: []string{"ocr", "maps"}},
			{Type: "labels", Labels: []string{"disk=ssd", "zone!=b", "gpu", "!spot"}},
			{Type: "geo", Location: "48.14,11.58", Threshold: 200},
			{Type: "geo", Area: "DE"},
			{Type: "geo", Polygon: []string{"47,10", "47,13", "50,13"}},
			{Type: "geo", Location: "nowhere"},
		},
	})
	munich := api.Geo{Lat: 48.14, Lon: 11.58}
	want := sched.Request{
		ID: "i", Needs: api.Resources{StorageMB: 100, InMbit: 3}, Urgency: 3, Convergence: 5 * time.Second, Network: req.Network, Address: true,
		Devices: []api.Device{{Name: "acme.com/lidar", Count: 2}, {Name: "gpu", Count: 1}},
		Addons:  []string{"ocr", "maps"}, Features: []string{api.FeatureStorage},
		Labels: []sched.Selector{
			{Key: "disk", Value: "ssd"}, {Key: "zone", Value: "b", Not: true}, {Key: "gpu", Any: true}, {Key: "spot", Any: true, Not: true},
		},
		Zones: []sched.Zone{
			{Circle: &munich, Radius: 200},
			{Area: "de"},
			{Polygon: []api.Geo{{Lat: 47, Lon: 10}, {Lat: 47, Lon: 13}, {Lat: 50, Lon: 13}}},
			{Area: "(contradicting constraints)"},
		},
	}
	if !reflect.DeepEqual(req, want) {
		t.Fatalf("got %+v", req)
	}
	for i, text := range []string{"disk=ssd", "zone!=b", "gpu", "!spot"} {
		if req.Labels[i].String() != text {
			t.Errorf("%q becomes %q", text, req.Labels[i])
		}
	}
}
