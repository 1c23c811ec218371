package api_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// constrained is an application of two services. The first has every kind of constraint.
const constrained = `{"sla_version":"v2.0","applications":[{"application_name":"video","application_namespace":"prod","microservices":[
	{"microservice_name":"pre","microservice_namespace":"v1","virtualization":"container","code":"acme/pre"},
	{"microservice_name":"pre","microservice_namespace":"v2","virtualization":"container","code":"acme/pre"},
	{"microservice_name":"store","microservice_namespace":"v1","virtualization":"container","code":"acme/store","priority":"low"},
	{"microservice_name":"detect","microservice_namespace":"v1","virtualization":"container","code":"acme/detect",
	 "storage":2048,"vgpus":1,"vtpus":0,"devices":[{"name":"acme.com/camera","count":2},{"name":"can-bus","count":1}],"priority":"urgent",
	 "constraints":[
		{"type":"addons","needs":["FLOps-learner","model-cache"],"rigidness":0},
		{"type":"geo","location":"48.14N,11.58E","threshold":120,"tolerate":"10s","convergence_time":2.5},
		{"type":"geo","area":"DE"},
		{"type":"geo","polygon":["48N,11E","48N,12E","49N,12E"],"threshold":0},
		{"type":"latency","area":"Munich","threshold":20},
		{"type":"latency","service":"pre.v1","threshold":20},
		{"type":"latency","target":"Gate.Example.org:443","threshold":30.5},
		{"type":"labels","labels":["rack","disk=nvme","zone!=a","!retired"]},
		{"type":"spread"},{"type":"spread","by":"rack","limit":2,"tolerate":"30s"},
		{"type":"anti_affinity","services":["store","pre.v1"],"by":"cluster","tolerate":"5s"}],
	 "connectivity":[{"target_microservice_id":"store","con_constraints":[
		{"type":"latency","threshold":5,"tolerate":"30s","convergence_time":5},{"type":"bandwidth","threshold":"100Mbit"},{"type":"geo","threshold":50}]}]}]}]}`

func TestEveryConstraintIsTaken(t *testing.T) {
	sla, err := api.ParseSLA([]byte(constrained))
	if err != nil {
		t.Fatal(err)
	}
	got := sla.Applications[0].Services[3]
	want := api.Microservice{
		Name: "detect", Namespace: "v1", Virtualization: "container", Code: "acme/detect", Network: api.NetworkOverlay, Storage: 2048, VGPUs: 1, Priority: "urgent",
		Devices: []api.Device{{Name: "acme.com/camera", Count: 2}, {Name: "can-bus", Count: 1}},
		Constraints: []api.Constraint{
			{Type: "addons", Needs: []string{"FLOps-learner", "model-cache"}},
			{Type: "geo", Location: "48.14,11.58", Threshold: 120, Rigidness: 10, ConvergenceTime: 2.5},
			{Type: "geo", Area: "de"},
			{Type: "geo", Polygon: []string{"48,11", "48,12", "49,12"}},
			{Type: "latency", Area: "munich", Threshold: 20},
			{Type: "latency", Service: "pre.v1", Threshold: 20},
			{Type: "latency", Target: "gate.example.org:443", Threshold: 30.5},
			{Type: "labels", Labels: []string{"rack", "disk=nvme", "zone!=a", "!retired"}},
			{Type: "spread"},
			{Type: "spread", By: "rack", Limit: 2, Rigidness: 30},
			{Type: "apart", Services: []string{"store.v1", "pre.v1"}, By: "cluster", Rigidness: 5},
		},
		Connectivity: []api.Connectivity{{Target: "store.v1", Constraints: []api.LinkConstraint{
			{Type: "latency", Threshold: 5, Rigidness: 30, ConvergenceTime: 5}, {Type: "bandwidth", Threshold: 100}, {Type: "geo", Threshold: 50},
		}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
	if n := got.Needs(); n != (api.Resources{StorageMB: 2048, InMbit: 100, OutMbit: 100}) {
		t.Errorf("needs %v", n)
	}
	if d := got.NeedsDevices(); !reflect.DeepEqual(d, []api.Device{{Name: "acme.com/camera", Count: 2}, {Name: "can-bus", Count: 1}, {Name: "gpu", Count: 1}}) {
		t.Errorf("devices %v", d)
	}
	if got.Urgency() != 3 || sla.Applications[0].Services[2].Urgency() != 0 || sla.Applications[0].Services[0].Urgency() != 1 {
		t.Error("urgencies are wrong")
	}
}

// pair returns an application with the services c.d and e.f. c.d has the given members.
func pair(members string) string {
	return strings.TrimSuffix(placed(members), "]}]}") +
		`,{"microservice_name":"e","microservice_namespace":"f","virtualization":"container","code":"nginx"}]}]}`
}

func TestFaultsOfPlaces(t *testing.T) {
	one := func(constraint string) string { return pair(`"constraints":[{` + constraint + `}]`) }
	link := func(needs string) string {
		return pair(`"connectivity":[{"target_microservice_id":"e","con_constraints":[` + needs + `]}]`)
	}
	k, l := at+"/constraints/0", at+"/connectivity/0"
	tests := []struct{ name, doc, pointer, says string }{
		{"no such type", one(`"type":"anti-affinity"`), k + "/type", "did you mean anti_affinity?"},
		{"a type by its key", one(`"type":"latancy"`), k + "/type", "did you mean latency?"},
		{"a synonym", pair(`"gpus":1`), at + "/gpus", "did you mean vgpus?"},
		{"a slip", pair(`"device":[]`), at + "/device", "did you mean devices?"},
		{"a slip within", one(`"type":"spread","limt":2`), k + "/limt", "did you mean limit?"},
		{"radius", one(`"type":"geo","location":"1N,1E","threshold":5,"radius":5`), k + "/radius", "did you mean threshold?"},
		{"misplaced", pair(`"polygon":[]`), at + "/polygon", "it belongs in /applications/*/microservices/*/constraints/*"},
		{"another type's key", one(`"type":"direct","node":"n","labels":["a"]`), k + "/labels", "use a constraint of type labels"},
		{"another type's keys", one(`"type":"labels","labels":["a"],"threshold":5`), k + "/threshold", "use a constraint of type geo or latency"},
		{"rigid names", one(`"type":"direct","node":"n","rigidness":0.5`), k + "/rigidness", "type addons or geo or latency or labels or spread or anti_affinity"},

		{"geo of nothing", one(`"type":"geo"`), k, "needs one of area, location, polygon"},
		{"geo of two", one(`"type":"geo","area":"de","location":"1N,1E","threshold":5`), k + "/location", "it has area, too"},
		{"no radius", one(`"type":"geo","location":"1N,1E"`), k + "/threshold", "above 0; give a number of km"},
		{"around the earth", one(`"type":"geo","location":"1N,1E","threshold":20016`), k + "/threshold", "at most 20015 km"},
		{"area with a radius", one(`"type":"geo","area":"de","threshold":5`), k + "/threshold", "cannot be combined with area"},
		{"off the earth", one(`"type":"geo","location":"91N,0E","threshold":5`), k + "/location", "latitude 91, longitude 0: want -90 to 90"},
		{"not a number", one(`"type":"geo","location":"NaN,0","threshold":5`), k + "/location", "is no"},
		{"a city as location", one(`"type":"geo","location":"munich","threshold":5`), k + "/location", "48.14N,11.58E"},
		{"an area with a sign", one(`"type":"geo","area":"münchen;1"`), k + "/area", "munich, de"},
		{"two corners", one(`"type":"geo","polygon":["1N,1E","2N,2E"]`), k + "/polygon", "at least 3"},
		{"many corners", one(`"type":"geo","polygon":[` + strings.TrimSuffix(strings.Repeat(`"1N,1E",`, 65), ",") + `]`), k + "/polygon", "at most 64"},
		{"a bad corner", one(`"type":"geo","polygon":["1N,1E","2N,2E","3"]`), k + "/polygon/2", "not a location"},
		{"corners without quotes", one(`"type":"geo","polygon":[48.14,"2N,2E","3N,1E"]`), k + "/polygon/0", `each corner in quotation marks: "48.14N,11.58E"`},
		{"a line", one(`"type":"geo","polygon":["1N,1E","2N,2E","3N,3E"]`), k + "/polygon", "has no area"},
		{"180 degrees", one(`"type":"geo","polygon":["0N,100W","0N,0E","0N,100E","10N,0E"]`), k + "/polygon", "180 degrees"},
		{"around the pole", one(`"type":"geo","polygon":["80N,0E","80N,120E","80N,120W"]`), k + "/polygon", "180 degrees"},

		{"latency to nothing", one(`"type":"latency","threshold":5`), k, "needs one of area, service, target"},
		{"latency to two", one(`"type":"latency","service":"e","target":"a.org","threshold":5`), k + "/target", "it has service, too"},
		{"no bound", one(`"type":"latency","area":"x"`), k + "/threshold", "give a number of ms"},
		{"a negative bound", one(`"type":"latency","area":"x","threshold":-1`), k + "/threshold", "0 to 60000"},
		{"a bound in words", one(`"type":"latency","area":"x","threshold":"20"`), k + "/threshold", "a number"},
		{"to a stranger", one(`"type":"latency","service":"ee","threshold":5`), k + "/service", "has no service"},
		{"to itself", one(`"type":"latency","service":"c","threshold":5`), k + "/service", "the service itself"},
		{"a URL", one(`"type":"latency","target":"https://a.org/","threshold":5`), k + "/target", "not a target"},
		{"a mistyped address", one(`"type":"latency","target":"198.51.100.256","threshold":5`), k + "/target", "not a target"},
		{"any address", one(`"type":"latency","target":"0.0.0.0","threshold":5`), k + "/target", "not a target"},
		{"a zone", one(`"type":"latency","target":"fe80::1%eth0","threshold":5`), k + "/target", "not a target"},
		{"a port of nothing", one(`"type":"latency","target":"a.org:0","threshold":5`), k + "/target", "not a target"},
		{"too tolerant", one(`"type":"latency","area":"x","threshold":5,"tolerate":"86401s"`), k + "/tolerate", "1ms to 24h"},
		{"rigidness in seconds", one(`"type":"latency","area":"x","threshold":5,"rigidness":60`), k + "/rigidness", "write tolerate: 60s"},
		{"tolerate without a unit", one(`"type":"latency","area":"x","threshold":5,"tolerate":"60"`), k + "/tolerate", "a whole number with its unit"},
		{"both", one(`"type":"latency","area":"x","threshold":5,"tolerate":"60s","rigidness":0.9`), k + "/tolerate", "cannot be combined"},
		{"doubtful corner", one(`"type":"geo","polygon":["1N,1E","2,2","3N,1E"]`), k + "/polygon/1", "does not say which number"},
		{"latitude first", one(`"type":"geo","location":"48.14,111.58","threshold":5`), k + "/location", "longitude before latitude: 11.58,48.14"},
		{"no end", one(`"type":"latency","area":"x","threshold":5,"convergence_time":3601`), k + "/convergence_time", "0 to 3600 s"},

		{"no addon", one(`"type":"addons","needs":[]`), k + "/needs", "list at least one"},
		{"an addon twice", one(`"type":"addons","needs":["a","a"]`), k + "/needs/1", "given twice"},
		{"an addon of nothing", one(`"type":"addons","needs":[""]`), k + "/needs/0", "letters, digits"},
		{"no label", one(`"type":"labels"`), k + "/labels", "list at least one"},
		{"a label in words", one(`"type":"labels","labels":["disk in (ssd)"]`), k + "/labels/0", "key!=value"},
		{"two values", one(`"type":"labels","labels":["a=1","a=2"]`), at + "/constraints", `both "a=1" and "a=2"`},
		{"there and not", one(`"type":"labels","labels":["!a","a"]`), at + "/constraints", `both "a" and "!a"`},
		{"is and is not", one(`"type":"labels","labels":["a=1","a!=1"]`), at + "/constraints", `both "a=1" and "a!=1"`},
		{"over the limit", one(`"type":"spread","limit":10001`), k + "/limit", "0 to 10000"},
		{"by anything", one(`"type":"spread","by":"a b"`), k + "/by", "node, cluster"},
		{"spread twice", pair(`"constraints":[{"type":"spread","limit":2},{"type":"spread","by":"node"}]`), k[:len(k)-1] + "1", "per node already, at " + k + "; keep one of them"},
		{"spread twice by a label", pair(`"constraints":[{"type":"spread","by":"rack"},{"type":"spread"},{"type":"spread","by":"rack","limit":3}]`), k[:len(k)-1] + "2", "per rack already, at " + k + "; keep one of them"},
		{"anti-affinity to nobody", one(`"type":"anti_affinity"`), k + "/services", "list at least one"},
		{"anti-affinity to itself", one(`"type":"anti_affinity","services":["c.d"]`), k + "/services/0", "type spread"},
		{"anti-affinity to a stranger", one(`"type":"anti_affinity","services":["e.g"]`), k + "/services/0", "did you mean e.f?"},
		{"anti-affinity twice", one(`"type":"anti_affinity","services":["e","e.f"]`), k + "/services/1", "given twice"},

		{"link to a stranger", pair(`"connectivity":[{"target_microservice_id":"x","con_constraints":[{"type":"geo","threshold":1}]}]`), l + "/target_microservice_id", "has no service"},
		{"link to itself", pair(`"connectivity":[{"target_microservice_id":"c.d","con_constraints":[{"type":"geo","threshold":1}]}]`), l + "/target_microservice_id", "the service itself"},
		{"link without a bound", link(`{"type":"geo"}`), l + "/con_constraints/0/threshold", "threshold is missing"},
		{"link of no speed", link(`{"type":"bandwidth","threshold":0}`), l + "/con_constraints/0/threshold", "kbit/s"},
		{"latency with a unit", link(`{"type":"latency","threshold":"10Mbit"}`), l + "/con_constraints/0/threshold", "a number of ms or km"},
		{"bandwidth in words", link(`{"type":"bandwidth","threshold":"much"}`), l + "/con_constraints/0/threshold", "10Mbit"},
		{"link too slow", link(`{"type":"latency","threshold":60001}`), l + "/con_constraints/0/threshold", "at most 60000 ms"},
		{"link need twice", link(`{"type":"geo","threshold":1},{"type":"geo","threshold":2}`), l + "/con_constraints/1/type", "given twice"},
		{"link of an unknown type", link(`{"type":"jitter","threshold":1}`), l + "/con_constraints/0/type", "latency, bandwidth, geo"},

		{"too many GPUs", pair(`"vgpus":65`), at + "/vgpus", "0 to 64"},
		{"half a GPU", pair(`"vgpus":0.5`), at + "/vgpus", "whole number"},
		{"too many devices", pair(`"vgpus":33,"devices":[{"name":"a/b","count":32}]`), at + "/devices", "at most 64"},
		{"GPUs as devices", pair(`"devices":[{"name":"gpu","count":1}]`), at + "/devices/0/name", "use vgpus"},
		{"a device twice", pair(`"devices":[{"name":"a/b","count":1},{"name":"a/b","count":2}]`), at + "/devices/1/name", "sum of the counts"},
		{"no device", pair(`"devices":[{"name":"a/b","count":0}]`), at + "/devices/0/count", "1 to 64"},
		{"a device's path", pair(`"devices":[{"name":"/dev/video0","count":1}]`), at + "/devices/0/name", "vendor.com/class"},
		{"a process with a GPU", pair(`"virtualization":"process","code":"/bin/x","vgpus":1`), at + "/vgpus", "run it as a container"},
		{"a process with a device", pair(`"virtualization":"process","code":"/bin/x","devices":[{"name":"a/b","count":1}]`), at + "/devices", "run it as a container"},
		{"storage", pair(`"storage":-1`), at + "/storage", "MiB"},
		{"priority", pair(`"priority":"higher"`), at + "/priority", "did you mean high?"},
		{"strategy", pair(`"sla_violation_strategy":"migrate"`), at + "/sla_violation_strategy", "use `rigidness`"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			faults := faultsOf(t, tt.doc)
			if len(faults) != 1 || faults[0].Pointer != tt.pointer || !strings.Contains(faults[0].String(), tt.says) {
				t.Fatalf("want one fault at %q that says %q, got %q", tt.pointer, tt.says, faults)
			}
			if faults[0].Fix == "" || faults[0].Field == "" {
				t.Fatalf("%q says not what to write instead", faults[0])
			}
		})
	}
}

func TestAProcessReservesNoBandwidthOfALink(t *testing.T) {
	faults := faultsOf(t, pair(`"virtualization":"process","code":"/bin/x","connectivity":[{"target_microservice_id":"e","con_constraints":[
		{"type":"latency","threshold":5},{"type":"bandwidth","threshold":5}]}]`))
	if len(faults) != 1 || faults[0].Pointer != at+"/connectivity/0/con_constraints/1/type" {
		t.Fatalf("faults are %q, want one for the type of the second link constraint", faults)
	}
}

func TestAThousandStrangersGiveABoundedAnswer(t *testing.T) {
	var services, strangers []string
	for i := range api.MaxServices {
		services = append(services, fmt.Sprintf(`{"microservice_name":"%030d","microservice_namespace":"d","virtualization":"container","code":"x"}`, i))
		strangers = append(strangers, fmt.Sprintf(`"%029dx"`, i))
	}
	apart := `{"type":"anti_affinity","services":[` + strings.Join(strangers, ",") + `]}`
	doc := strings.TrimSuffix(placed(`"constraints":[`+strings.TrimSuffix(strings.Repeat(apart+",", 64), ",")+`]`), "]}]}") + "," + strings.Join(services[:255], ",") + "]}]}"
	if len(doc) > api.MaxSLABytes {
		t.Fatalf("a document of %d bytes", len(doc))
	}
	_, err := api.ParseSLA([]byte(doc))
	var faults *api.Faults
	if !errors.As(err, &faults) || len(faults.Faults) != 100 || faults.More != 64*256-100 {
		t.Fatalf("%d faults and %d more", len(faults.Faults), faults.More)
	}
}

// A name that two services share is ambiguous without its namespace.
func TestASharedNameIsNotEnough(t *testing.T) {
	faults := faultsOf(t, strings.Replace(constrained, `"pre.v1","threshold"`, `"pre","threshold"`, 1))
	if len(faults) != 1 || !strings.Contains(faults[0].String(), "write pre.v1") {
		t.Fatalf("faults are %q, want one that says: write pre.v1", faults)
	}
}

// Values of unused fields in Oakestra's files have no effect.
func TestNeutralConstraintsAreTaken(t *testing.T) {
	sla, err := api.ParseSLA([]byte(placed(`"vgpus":0,"vtpus":0,"storage":0,"connectivity":[],"devices":null,"priority":"","sla_violation_strategy":"",
		"constraints":[{"type":"direct","cluster":"c1","node":"","area":"","location":"","polygon":[],"threshold":0,"rigidness":0,"convergence_time":0,"needs":[],"allowed":null}]`)))
	if err != nil {
		t.Fatal(err)
	}
	m := sla.Applications[0].Services[0]
	if !reflect.DeepEqual(m.Constraints, []api.Constraint{{Type: "direct", Cluster: "c1"}}) || m.Connectivity != nil || m.NeedsDevices() != nil {
		t.Fatalf("the parsed service is %+v, want only the direct constraint", m)
	}
}

func TestPolygonsThatCrossTheDateLineAreTaken(t *testing.T) {
	for _, corners := range []string{`"10N,170E","10N,170W","10S,170W","10S,170E"`, `"0N,80W","0N,0E","0N,80E","10N,0E"`, `"70N,180W","65N,180E","60N,170E"`} {
		if _, err := api.ParseSLA([]byte(placed(`"constraints":[{"type":"geo","polygon":[` + corners + `]}]`))); err != nil {
			t.Errorf("polygon %s: %v, want it accepted", corners, err)
		}
	}
}

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]struct {
		host string
		port uint16
	}{
		"a.example.org": {"a.example.org", 0}, "gate:443": {"gate", 443}, "198.51.100.7": {"198.51.100.7", 0}, "198.51.100.7:80": {"198.51.100.7", 80},
		"2001:db8::7": {"2001:db8::7", 0}, "[2001:db8::7]:443": {"2001:db8::7", 443}, "10.0.0.1": {"10.0.0.1", 0}, "localhost": {"localhost", 0},
		"x_y.xn--p1ai": {"x_y.xn--p1ai", 0}, "1.de": {"1.de", 0},
	} {
		if host, port, err := api.ParseTarget(text); err != nil || host != want.host || port != want.port {
			t.Errorf("ParseTarget(%s) = %s, %d, %v, want the host and port of the table", text, host, port, err)
		}
	}
	for _, text := range []string{
		"", ":80", "a:", "a:0", "a:65536", "a:b", "a b", "a/b", "http://a", "a:1:2", "[::1]", "[::1]:0", "[a]:1", "1.2.3", "1.2.3.4.5", "::", "224.0.0.1",
		"ff02::1", "fe80::1%eth0", "-a.org", "a..org", "a.org.1", strings.Repeat("a.", 127) + "de", "user@a.org", "a\x00",
	} {
		if host, port, err := api.ParseTarget(text); err == nil {
			t.Errorf("%q is %s %d", text, host, port)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, text := range []string{"a.example.org:443", "198.51.100.7", "[2001:db8::7]:443", "::ffff:10.0.0.1", "https://a/"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		host, _, err := api.ParseTarget(text)
		if err != nil {
			return
		}
		if again, port, err := api.ParseTarget(host); err != nil || again != host || port != 0 {
			t.Fatalf("%q has the host %q, which is %q, %d, %v", text, host, again, port, err)
		}
	})
}

// The former name of the type is still accepted, and both names are stored under it, so that a
// cluster of the previous release understands them.
func TestAntiAffinityHasAFormerName(t *testing.T) {
	for _, name := range []string{"apart", "anti_affinity"} {
		doc := strings.Replace(constrained, `"type":"anti_affinity"`, `"type":"`+name+`"`, 1)
		sla, err := api.ParseSLA([]byte(doc))
		if err != nil {
			t.Errorf("%s: %v, want it accepted", name, err)
			continue
		}
		constraints := sla.Applications[0].Services[3].Constraints
		if got := constraints[len(constraints)-1].Type; got != "apart" {
			t.Errorf("%s is stored as %q, want apart", name, got)
		}
	}
}
