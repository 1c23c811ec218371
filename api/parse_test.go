package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func file(t testing.TB, name string) []byte {
	t.Helper()
	doc, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func faultsOf(t *testing.T, doc string) []api.Fault {
	t.Helper()
	_, err := api.ParseSLA([]byte(doc))
	var faults *api.Faults
	if !errors.As(err, &faults) || !errors.Is(err, api.ErrInvalid) {
		t.Fatalf("want faults of %s, got %v", doc, err)
	}
	return faults.Faults
}

// service returns an SLA whose only service has the given members in addition to the required ones.
func service(members string) string {
	return `{"sla_version":"v2.0","applications":[{"application_name":"a","application_namespace":"b","microservices":[` +
		`{"microservice_name":"c","microservice_namespace":"d"` + prefix(`,`, members) + `}]}]}`
}

// placed is service with the required members that are not given.
func placed(members string) string {
	for _, m := range []string{`"virtualization":"container"`, `"code":"nginx"`} {
		key, _, _ := strings.Cut(m, ":")
		if !strings.Contains(members, key) {
			members = m + prefix(",", members)
		}
	}
	return service(members)
}

func prefix(p, s string) string {
	if s == "" {
		return ""
	}
	return p + s
}

const at = "/applications/0/microservices/0"

func TestAcceptedDocumentIsComplete(t *testing.T) {
	sla, err := api.ParseSLA(file(t, "accepted.json"))
	if err != nil {
		t.Fatal(err)
	}
	web, report := sla.Applications[0].Services[0], sla.Applications[0].Services[1]
	three, none := 3, 0
	wantWeb := api.Microservice{
		Name: "web", Namespace: "v1", Virtualization: "container", Code: "docker.io/library/nginx:1.27",
		Memory: 100, VCPUs: 0.25, Network: api.NetworkOverlay, Environment: []string{"MODE=fast", "EMPTY="}, Arch: []string{"arm64"}, Platform: "linux/arm64",
		Constraints: []api.Constraint{{Type: "clusters", Allowed: []string{"c1", "c2"}}, {Type: "direct", Cluster: "c2;c3"}},
		Replicas:    &three, Exclusive: true, StopGrace: 30,
	}
	wantReport := api.Microservice{
		Name: "report", Namespace: "v1", Virtualization: "process", Code: "/usr/local/bin/report", Arch: []string{"amd64", "arm64"},
		OneShot: true, Privileged: true, OnDisconnect: api.StopWhenCutOff, Replicas: &none,
	}
	if !reflect.DeepEqual(web, wantWeb) || !reflect.DeepEqual(report, wantReport) {
		t.Fatalf("got %+v\nand %+v", web, report)
	}
	if got := web.Needs(); got != (api.Resources{MilliCPU: 250, MemoryMB: 100}) {
		t.Fatalf("needs %v", got)
	}
}

// Oakestra's own example, as its command-line client writes it.
func TestOakestraExampleIsTaken(t *testing.T) {
	sla, err := api.ParseSLA(file(t, "oakestra-default.json"))
	if err != nil {
		t.Fatal(err)
	}
	curl, nginx := sla.Applications[0].Services[0], sla.Applications[0].Services[1]
	if got := curl.Ports(); !slices.Equal(got, []api.PortMap{{Host: 9080, Instance: 9080, Protocol: "tcp"}}) {
		t.Errorf("curl publishes %v", got)
	}
	if got := nginx.Ports(); !slices.Equal(got, []api.PortMap{{Host: 6080, Instance: 80, Protocol: "tcp"}}) {
		t.Errorf("nginx publishes %v", got)
	}
	if nginx.Addresses == nil || nginx.Addresses.RoundRobin != "10.30.30.30" || !nginx.NeedsNetwork() {
		t.Errorf("nginx has %+v", nginx.Addresses)
	}
}

func TestEveryRefusedFieldIsRefusedByNameAndTakenWhenNeutral(t *testing.T) {
	for _, f := range api.Fields {
		if f.Status != api.Refused {
			continue
		}
		if f.Until == "" {
			t.Errorf("%s is refused and does not say until when", f.Pointer)
		}
		doc := func(value string) string {
			m := fmt.Sprintf("%q:%s", f.Name(), value)
			switch {
			case f.Pointer == "/args":
				return strings.Replace(placed(""), "{", "{"+m+",", 1)
			case strings.Contains(f.Pointer, "/addresses/"):
				return placed(`"addresses":{` + m + `}`)
			case strings.Contains(f.Pointer, "/volumes/"):
				return placed(`"volumes":[{"name":"v","type":"tmpfs","size":1,"mount_path":"/v",` + m + `}]`)
			case strings.Contains(f.Pointer, "/scale/"):
				return placed(`"scale":{"max":1,` + m + `}`)
			case strings.Contains(f.Pointer, "/constraints/"):
				return placed(`"constraints":[{"type":"direct","cluster":"c1",` + m + `}]`)
			}
			return placed(m)
		}
		for _, neutral := range []string{`0`, `""`, `[]`, `{}`, `null`, `false`} {
			if _, err := api.ParseSLA([]byte(doc(neutral))); err != nil {
				t.Errorf("%s with the neutral value %s: %v, want it accepted", f.Pointer, neutral, err)
			}
		}
		for _, asking := range []string{`1`, `"x"`, `["x"]`, `{"x":1}`, `true`} {
			faults := faultsOf(t, doc(asking))
			if len(faults) != 1 || faults[0].Field != f.Name() || !strings.HasPrefix(faults[0].Message, f.Name()+" is refused") ||
				faults[0].Pointer != strings.ReplaceAll(f.Pointer, "*", "0") {
				t.Errorf("refused field %s with the value %s: faults are %v, want one for this field", f.Pointer, asking, faults)
			}
		}
	}
}

func TestFaults(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	list := func(n int, of string) string { return "[" + strings.TrimSuffix(strings.Repeat(of+",", n), ",") + "]" }
	tests := []struct{ name, doc, pointer, says string }{
		{"typo", placed(`"cpus":1`), at + "/cpus", "did you mean vcpus?"},
		{"synonym", placed(`"image":"x"`), at + "/image", "did you mean code?"},
		{"suffix", placed(`"namespace":"x"`), at + "/namespace", "did you mean microservice_namespace?"},
		{"misplaced", strings.Replace(placed(""), "{", `{"one_shot":true,`, 1), "/one_shot", "it belongs in /applications/*/microservices/*"},
		{"case counts", placed(`"Memory":1`), at + "/Memory", "did you mean memory?"},
		{"strange key", placed(`"a/b~c":1`), at + "/a~1b~0c", `no field "a/b~c"`},
		{"key that looks like a pattern", placed(`"cmd/*":"x"`), at + "/cmd~1*", "no field"},
		{"star", placed(`"constraints":[{"type":"direct","node":"n","*":1}]`), at + "/constraints/0/*", "no field"},
		{"unknown in constraint", placed(`"constraints":[{"type":"direct","clutser":"c1","node":"n"}]`), at + "/constraints/0/clutser", "did you mean cluster?"},
		{"given twice", placed(`"memory":1,"memory":2`), at + "/memory", "given twice"},
		{"wrong type", placed(`"memory":"100"`), at + "/memory", `an integer, not the string "100"`},
		{"null entry", placed(`"cmd":[null]`), at + "/cmd/0", "a string, not null"},
		{"required null", service(`"virtualization":"container","code":null`), at + "/code", "a string, not null"},
		{"missing", service(`"virtualization":"container"`), at + "/code", "code is missing"},
		{"whole number", placed(`"memory":1.5`), at + "/memory", "whole number"},
		{"negative", placed(`"memory":-1`), at + "/memory", "0 to 16777216 MiB"},
		{"too much memory", placed(`"memory":16777217`), at + "/memory", "0 to 16777216 MiB"},
		{"absurd", placed(`"vcpus":1e999`), at + "/vcpus", "0 to 4096 vCPU"},
		{"decimals", placed(`"vcpus":0.0001`), at + "/vcpus", "thousandths"},
		{"hidden decimals", placed(`"vcpus":1.0000000000000000000000000000001`), at + "/vcpus", "thousandths"},
		{"tiny", placed(`"vcpus":1e-400`), at + "/vcpus", "thousandths"},
		{"replicas", placed(`"replicas":10001`), at + "/replicas", "0 to 10000"},
		{"grace", placed(`"stop_grace":3601`), at + "/stop_grace", "0 to 3600 s"},
		{"too many arguments", placed(`"cmd":` + list(257, `"x"`)), at + "/cmd", "at most 256"},
		{"argument too long", placed(`"cmd":["` + long(16385) + `"]`), at + "/cmd/0", "at most 16384"},
		{"NUL", placed(`"cmd":["a\u0000b"]`), at + "/cmd/0", "NUL"},
		{"environment", placed(`"environment":["1A=b"]`), at + "/environment/0", "KEY=value"},
		{"environment without a value", placed(`"environment":["A"]`), at + "/environment/0", "KEY=value"},
		{"environment twice", placed(`"environment":["A=1","A=2"]`), at + "/environment/1", "A is given twice"},
		{"arch", placed(`"arch":["x86_64"]`), at + "/arch/0", "did you mean amd64?"},
		{"arch twice", placed(`"arch":["arm","arm"]`), at + "/arch/1", "given twice"},
		{"platform against arch", placed(`"platform":"linux/amd64","arch":["amd64","arm64"]`), at + "/arch/1", "contradicts platform"},
		{"windows", placed(`"platform":"windows/amd64"`), at + "/platform", "linux/"},
		{"variant", placed(`"platform":"linux/arm/v7"`), at + "/platform", "without a variant"},
		{"no such processor", placed(`"platform":"linux/aarch64"`), at + "/platform", "did you mean arm64?"},
		{"virtualization", placed(`"virtualization":"Kata QEMU"`), at + "/virtualization", "lower case"},
		{"name", strings.Replace(placed(""), `"c"`, `"my_web"`, 1), at + "/microservice_name", "letters, digits and inner hyphens"},
		{"reserved name", strings.Replace(placed(""), `"c"`, `"OF-tenant"`, 1), at + "/microservice_name", "choose another name"},
		{"id given", placed(`"microserviceID":"66"`), at + "/microserviceID", "leave it empty"},
		{"version 1", strings.Replace(placed(""), "v2.0", "v1.0", 1), "/sla_version", "deprecated"},
		{"another version", strings.Replace(placed(""), "v2.0", "v3", 1), "/sla_version", "one of v2.0"},
		{"no version", strings.Replace(placed(""), `"sla_version":"v2.0",`, "", 1), "/sla_version", "missing"},
		{"no application", `{"sla_version":"v2.0","applications":[]}`, "/applications", "at least 1"},
		{"constraint kind", placed(`"constraints":[{"type":"directt","node":"n"}]`), at + "/constraints/0/type", "did you mean direct?"},
		{"direct to nothing", placed(`"constraints":[{"type":"direct","cluster":""}]`), at + "/constraints/0", "needs a cluster or a node"},
		{"direct to a bad name", placed(`"constraints":[{"type":"direct","cluster":"c1;C_2"}]`), at + "/constraints/0/cluster", `"C_2"`},
		{"clusters allows none", placed(`"constraints":[{"type":"clusters"}]`), at + "/constraints/0/allowed", "needs allowed; list at least one"},
		{"clusters with a node", placed(`"constraints":[{"type":"clusters","allowed":["c1"],"node":"n"}]`), at + "/constraints/0/node", "type direct"},
		{"contradiction", placed(`"constraints":[{"type":"clusters","allowed":["c1"]},{"type":"direct","cluster":"c2"}]`), at + "/constraints", "allow no cluster"},
		{"exclusive that keeps", placed(`"exclusive":true,"on_disconnect":"keep"`), at + "/on_disconnect", "run twice"},
		{"attempts of no one-shot", placed(`"max_attempts":3`), at + "/max_attempts", "applies to a one_shot"},
		{"an input of a process", placed(`"virtualization":"process","code":"/bin/x","stdin":true`), at + "/stdin", "containers only"},
		{"a terminal of a process", placed(`"virtualization":"process","code":"/bin/x","tty":true`), at + "/tty", "containers only"},
		{"too many attempts", placed(`"one_shot":true,"max_attempts":1001`), at + "/max_attempts", "1000"},
		{"fewer attempts than none", placed(`"one_shot":true,"max_attempts":-1`), at + "/max_attempts", "0"},
		{"on_disconnect", placed(`"on_disconnect":"halt"`), at + "/on_disconnect", "one of keep, stop"},
		{"port out of range", placed(`"port":"70000:80"`), at + "/port", "1 to 65535"},
		{"port of nothing", placed(`"port":"0:80"`), at + "/port", "1 to 65535"},
		{"port with a typo", placed(`"port":"80:80/tpc"`), at + "/port", "tcp, udp or sctp"},
		{"port twice", placed(`"port":"80:80;80:81/tcp"`), at + "/port", "published twice"},
		{"process with a port", placed(`"virtualization":"process","code":"/bin/web","port":"80"`), at + "/port", "run it as a container"},
		{"process on the overlay", placed(`"virtualization":"process","code":"/bin/web","network":"overlay"`), at + "/network", "run it as a container"},
		{"opted out, with a port", placed(`"network":"any","port":"80"`), at + "/network", "leave out network or port"},
		{"opted out, with bandwidth", placed(`"network":"any","bandwidth_out":"10Mbit"`), at + "/network", "leave out network or bandwidth_out"},
		{"opted out, with an address", placed(`"network":"any","addresses":{"rr_ip":"auto"}`), at + "/network", "leave out network or addresses"},
		{"opted out, with callers", placed(`"network":"any","callers":["app"]`), at + "/network", "leave out network or callers"},
		{"opted out, with calls", placed(`"network":"any","calls":["acme/shop.prod"]`), at + "/network", "leave out network or calls"},
		{"no such network", placed(`"network":"host"`), at + "/network", "one of overlay, any"},
		{"process with an address", placed(`"virtualization":"process","code":"/bin/web","addresses":{"rr_ip":"auto"}`), at + "/addresses", "run it as a container"},
		{"address of no network", placed(`"addresses":{"rr_ip":"10.30.1.256"}`), at + "/addresses/rr_ip", "not an IPv4 address"},
		{"address in words", placed(`"addresses":{"closest_ip":"any"}`), at + "/addresses/closest_ip", "auto, or an IPv4 address"},
		{"ranges that overlap", placed(`"addresses":{"instances":[{"from":0,"to":3},{"from":3,"to":4}]}`), at + "/addresses/instances/1", "overlap"},
		{"range backwards", placed(`"addresses":{"instances":[{"from":3,"to":0}]}`), at + "/addresses/instances/0/to", "less than from"},
		{"too many addresses", placed(`"addresses":{"instances":[{"from":0,"to":1024}]}`), at + "/addresses/instances", "at most 1024"},
		{"bandwidth", placed(`"bandwidth_in":-1`), at + "/bandwidth_in", "kbit/s"},
		{"bandwidth without a unit", placed(`"bandwidth_in":"10"`), at + "/bandwidth_in", "10Mbit"},
		{"bandwidth in bytes", placed(`"bandwidth_in":"10MB"`), at + "/bandwidth_in", "10Mbit"},
		{"too much bandwidth", placed(`"bandwidth_out":"1001Gbit"`), at + "/bandwidth_out", "at most 1000Gbit"},
		{"caller", placed(`"callers":["shop"]`), at + "/callers/0", "<app>.<ns>"},
		{"none and others", placed(`"callers":["none","app"]`), at + "/callers/0", "cannot be combined"},
		{"call without a tenant", placed(`"calls":["shop.prod"]`), at + "/calls/0", "<tenant>/"},
		{"scheme", placed(`"code":"http://registry/x"`), at + "/code", "scheme"},
		{"dots", placed(`"code":"x/../y"`), at + "/code", `".."`},
		{"blank", placed(`"code":"nginx latest"`), at + "/code", "white space"},
		{"newline", placed(`"code":"nginx\n"`), at + "/code", "white space"},
		{"capitals", placed(`"code":"Nginx"`), at + "/code", "write nginx"},
		{"tag", placed(`"code":"nginx:-x"`), at + "/code", "malformed tag"},
		{"digest", placed(`"code":"nginx@sha256:12"`), at + "/code", "malformed digest"},
		{"registry", placed(`"code":"a..b/x"`), at + "/code", `".."`},
		{"relative program", placed(`"virtualization":"process","code":"bin/web"`), at + "/code", "absolute path"},
		{"not JSON", "{\n  \"sla_version\": }", "", "line 2, column 18"},
		{"trailing data", placed("") + "{}", "", "after top-level value"},
		{"a list", `[]`, "", "the document must be an object, not an array"},
		{"nothing", ``, "", "not JSON"},
		{"not text", "{\"a\":\"\xff\"}", "", "UTF-8"},
		{"deep", strings.Repeat("[", 33) + strings.Repeat("]", 33), "", "nested deeper than 32"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			faults := faultsOf(t, tt.doc)
			if len(faults) != 1 || faults[0].Pointer != tt.pointer || !strings.Contains(faults[0].String(), tt.says) {
				t.Fatalf("want one fault at %q that says %q, got %q", tt.pointer, tt.says, faults)
			}
			if tt.pointer != "" && faults[0].Fix == "" && !strings.Contains(faults[0].Message, "there is no field") {
				t.Fatalf("%q says not what to write instead", faults[0])
			}
		})
	}
}

func TestAllFaultsAreReportedAtOnce(t *testing.T) {
	faults := faultsOf(t, placed(`"cpus":1,"memory":-1,"port":"80/icmp","code":"A B"`))
	if len(faults) != 4 {
		t.Fatalf("faults are %q, want 4", faults)
	}
}

func TestNamesAreUnique(t *testing.T) {
	svc := `{"microservice_name":"c","microservice_namespace":"d","virtualization":"container","code":"nginx"}`
	app := `{"application_name":"a","application_namespace":"b","microservices":[` + svc + `,` + svc + `]}`
	faults := faultsOf(t, `{"sla_version":"v2.0","applications":[`+app+`,`+app+`]}`)
	if len(faults) != 3 || faults[0].Pointer != "/applications/0/microservices/1/microservice_name" ||
		faults[2].Pointer != "/applications/1/application_name" {
		t.Fatalf("the pointers of the faults are wrong: %q", faults)
	}
}

func TestImageReferencesThatAreTaken(t *testing.T) {
	for _, ref := range []string{
		"nginx", "nginx:latest", "library/nginx:1.27-alpine", "docker.io/library/nginx", "localhost/web", "localhost:5000/web:v1",
		"registry.example.org:5000/a/b__c/d-e.f:V_1", "[::1]:5000/web", "treeline.local/hello:dev",
		"ghcr.io/acme/web@sha256:" + strings.Repeat("ab", 32), "web:1@sha256:" + strings.Repeat("0", 64),
	} {
		if _, err := api.ParseSLA([]byte(placed(fmt.Sprintf(`"code":%q`, ref)))); err != nil {
			t.Errorf("image reference %s: %v, want it accepted", ref, err)
		}
	}
}

func TestBoundsOnSize(t *testing.T) {
	for name, doc := range map[string][]byte{
		"bytes":  bytes.Repeat([]byte(" "), api.MaxSLABytes+1),
		"values": []byte("[" + strings.Repeat("1,", api.MaxSLAValues) + "1]"),
	} {
		if _, err := api.ParseSLA(doc); !errors.Is(err, api.ErrTooLarge) {
			t.Errorf("%s: %v, want ErrTooLarge", name, err)
		}
	}
}

func TestAThousandTyposGiveABoundedAnswer(t *testing.T) {
	var keys []string
	for i := range 50_000 {
		keys = append(keys, fmt.Sprintf(`"memorr%d":1`, i))
	}
	_, err := api.ParseSLA([]byte(placed(strings.Join(keys, ","))))
	var faults *api.Faults
	if !errors.As(err, &faults) || len(faults.Faults) != 100 || faults.More != 50_000-100 {
		t.Fatalf("%d faults", len(faults.Faults))
	}
	if len(err.Error()) > 20_000 || !strings.Contains(err.Error(), "and 49900 more") {
		t.Fatalf("an answer of %d bytes", len(err.Error()))
	}
}

// Fields and the Go types have the same fields.
func TestTableAndTypesAgree(t *testing.T) {
	kept := map[string]bool{}
	var walk func(at string, ty reflect.Type)
	walk = func(at string, ty reflect.Type) {
		kept[at] = true
		switch ty.Kind() {
		case reflect.Slice, reflect.Map:
			walk(at+"/*", ty.Elem())
		case reflect.Pointer:
			walk(at, ty.Elem())
		case reflect.Struct:
			for i := range ty.NumField() {
				name, _, _ := strings.Cut(ty.Field(i).Tag.Get("json"), ",")
				walk(at+"/"+name, ty.Field(i).Type)
			}
		}
	}
	walk("", reflect.TypeFor[api.SLA]())
	// A document's tolerate is stored as rigidness in seconds, its rigidness as a share.
	for _, at := range []string{"/applications/*/microservices/*/constraints/*", "/applications/*/microservices/*/connectivity/*/con_constraints/*"} {
		kept[at+"/tolerate"] = true
		delete(kept, at+"/share")
	}
	for _, f := range api.Fields {
		if (f.Status != api.Refused) != kept[f.Pointer] {
			t.Errorf("%q is %s, and its place in the types is %v", f.Pointer, f.Status, kept[f.Pointer])
		}
		if f.Doc == "" {
			t.Errorf("%q says nothing", f.Pointer)
		}
		delete(kept, f.Pointer)
	}
	for p := range kept {
		t.Errorf("%q is decoded and not in the table", p)
	}
}

func FuzzParseSLA(f *testing.F) {
	for _, name := range []string{"accepted.json", "oakestra-default.json"} {
		f.Add(file(f, name))
	}
	f.Add([]byte(constrained))
	for _, doc := range []string{
		placed(`"vgpus":0,"connectivity":[]`), placed(`"constraints":[{"type":"geo","location":"-0,1e1","threshold":-0.0}]`),
		placed(""), placed(`"vcpus":-0.0`), placed(`"vcpus":1e3,"memory":-0`), placed(`"cmd":["\ud800"]`), placed(`"replicas":0,"arch":[]`),
		placed(`"constraints":[{"type":"clusters","allowed":["a","b"],"cluster":null}]`), `{"":{"":[]}}`, `null`, `[[`, "\x00",
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		sla, err := api.ParseSLA(doc)
		if err != nil {
			if !errors.Is(err, api.ErrInvalid) && !errors.Is(err, api.ErrTooLarge) {
				t.Fatalf("an error of no kind: %v", err)
			}
			if err.Error() == "" {
				t.Fatal("an error without words")
			}
			return
		}
		// The result can be stored and decoded. It is not a document, because its units are those
		// of the Go types.
		stored, err := json.Marshal(sla)
		if err != nil {
			t.Fatal(err)
		}
		var twin api.SLA
		if err := json.Unmarshal(stored, &twin); err != nil {
			t.Fatalf("accepted, and not read again as %s: %v", stored, err)
		}
		if !reflect.DeepEqual(sla, twin) {
			t.Fatalf("%+v became %+v", sla, twin)
		}
	})
}
