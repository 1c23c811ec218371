package api_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// two returns a document of a service with the additional fields, and of another service, e.f.
func two(more string) []byte {
	service := func(name, ns, more string) string {
		return `{"microservice_name":"` + name + `","microservice_namespace":"` + ns + `","virtualization":"container","code":"nginx"` + more + `}`
	}
	return []byte(`{"sla_version":"v2.0","applications":[{"application_name":"a","application_namespace":"b","microservices":[` +
		service("c", "d", ","+more) + `,` + service("e", "f", "") + `]}]}`)
}

// In Oakestra's documentation, bandwidth is in kbit/s, rigidness is a share of requests, and
// longitude comes before latitude. A v2.0 document has the same meaning here.
func TestUnitsOfOakestra(t *testing.T) {
	sla, err := api.ParseSLA(two(`"bandwidth_in":1000,"bandwidth_out":100,
		"constraints":[{"type":"geo","location":"11.58,48.14","threshold":100,"rigidness":0.9,"convergence_time":300},
			{"type":"latency","area":"munich","threshold":20,"rigidness":1,"convergence_time":300}],
		"addresses":{"instances":[{"from":"0","to":"2","start":"auto"}]},
		"connectivity":[{"target_microservice_id":"e.f","con_constraints":[{"type":"bandwidth","threshold":2500,"rigidness":0.5,"convergence_time":5}]}]`))
	if err != nil {
		t.Fatal(err)
	}
	m := sla.Applications[0].Services[0]
	if m.BandwidthIn != 1 || m.BandwidthOut != 1 { // 100 kbit/s are rounded up to 1 Mbit/s
		t.Errorf("1000 and 100 kbit/s are %d and %d Mbit/s", m.BandwidthIn, m.BandwidthOut)
	}
	want := []api.Constraint{
		{Type: "geo", Location: "48.14,11.58", Threshold: 100, Rigidness: 30, Share: 0.9, ConvergenceTime: 300},
		{Type: "latency", Area: "munich", Threshold: 20, Rigidness: 0.001, Share: 1, ConvergenceTime: 300},
	}
	if !reflect.DeepEqual(m.Constraints, want) {
		t.Errorf("got %+v, want %+v", m.Constraints, want)
	}
	if k := m.Connectivity[0].Constraints[0]; k != (api.LinkConstraint{Type: "bandwidth", Threshold: 3, Rigidness: 150, Share: 0.5, ConvergenceTime: 5}) {
		t.Errorf("the link is %+v", k)
	}
	if r := m.Addresses.Instances[0]; r != (api.AddressRange{From: 0, To: 2, Start: "auto"}) {
		t.Errorf("the range is %+v", r)
	}
}

func TestUnitsOfOurOwn(t *testing.T) {
	sla, err := api.ParseSLA(two(`"bandwidth_in":"10Mbit","bandwidth_out":"1.5Gbit",
		"constraints":[{"type":"geo","location":"48.14N,11.58E","threshold":100,"tolerate":"90s"},
			{"type":"geo","polygon":["1S,1W","2E,1S","1N,2E"],"tolerate":"5m"}],
		"connectivity":[{"target_microservice_id":"e.f","con_constraints":[{"type":"bandwidth","threshold":"300kbit","tolerate":"500ms"}]}]`))
	if err != nil {
		t.Fatal(err)
	}
	m := sla.Applications[0].Services[0]
	if m.BandwidthIn != 10 || m.BandwidthOut != 1500 {
		t.Errorf("10Mbit and 1.5Gbit are %d and %d Mbit/s", m.BandwidthIn, m.BandwidthOut)
	}
	want := []api.Constraint{
		{Type: "geo", Location: "48.14,11.58", Threshold: 100, Rigidness: 90},
		{Type: "geo", Polygon: []string{"-1,-1", "-1,2", "1,2"}, Rigidness: 300},
	}
	if !reflect.DeepEqual(m.Constraints, want) {
		t.Errorf("got %+v, want %+v", m.Constraints, want)
	}
	if k := m.Connectivity[0].Constraints[0]; k != (api.LinkConstraint{Type: "bandwidth", Threshold: 1, Rigidness: 0.5}) {
		t.Errorf("the link is %+v", k)
	}
}

// Records of an earlier release have Mbit/s, seconds and latitude first. They are decoded, not
// parsed, and keep their meaning.
func TestStoredServicesKeepTheirMeaning(t *testing.T) {
	var m api.Microservice
	stored := `{"microservice_name":"a","bandwidth_in":10,"constraints":[{"type":"geo","location":"48.14,11.58","threshold":1,"rigidness":60}]}`
	if err := json.Unmarshal([]byte(stored), &m); err != nil {
		t.Fatal(err)
	}
	if k := m.Constraints[0]; m.BandwidthIn != 10 || m.Needs().InMbit != 10 || k.Location != "48.14,11.58" || k.Rigidness != 60 || k.Share != 0 {
		t.Errorf("got %+v", m)
	}
}

func TestParseLocation(t *testing.T) {
	for text, want := range map[string]api.Geo{
		"11.58,48.14": {Lat: 48.14, Lon: 11.58}, "11.58;48.14": {Lat: 48.14, Lon: 11.58}, "-70.6, -33.4": {Lat: -33.4, Lon: -70.6},
		"48.14N,11.58E": {Lat: 48.14, Lon: 11.58}, "11.58E, 48.14N": {Lat: 48.14, Lon: 11.58}, "33.4S,70.6W": {Lat: -33.4, Lon: -70.6}, "180,90": {Lat: 90, Lon: 180},
	} {
		if g, err := api.ParseLocation(text); err != nil || g != want {
			t.Errorf("%q is %v, %v, want %v", text, g, err, want)
		}
	}
	for _, text := range []string{"", "1", "48.14N,11.58N", "48.14N,11.58", "-1N,1E", "91N,0E", "0,91", "181,0", "NaN,0", "Inf,0", "a,b", "1,2,3", "N,E"} {
		if g, err := api.ParseLocation(text); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%q is %v, %v, want invalid", text, g, err)
		}
	}
}
