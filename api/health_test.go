package api_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func healthOf(t *testing.T, members string) *api.Health {
	t.Helper()
	sla, err := api.ParseSLA([]byte(placed(`"health":` + members)))
	if err != nil {
		t.Fatalf("parse health %s: %v", members, err)
	}
	return sla.Applications[0].Services[0].Health
}

func TestHealthChecksAreTaken(t *testing.T) {
	got := healthOf(t, `{"startup":{"command":["/bin/ready","-q"],"failures":60},`+
		`"readiness":{"http":{"port":8080,"path":"/healthz?full=1","headers":["X-Check: yes","Host: shop.example"],"status":"204"},"interval":2,"successes":2},`+
		`"liveness":{"grpc":{"port":9000,"service":"shop.v1.Cart"},"timeout":5,"initial_delay":30}}`)
	want := &api.Health{
		Startup: &api.Check{Command: []string{"/bin/ready", "-q"}, Failures: 60},
		Readiness: &api.Check{
			HTTP:     &api.HTTPCheck{Port: 8080, Path: "/healthz?full=1", Headers: []string{"X-Check: yes", "Host: shop.example"}, Status: "204"},
			Interval: 2, Successes: 2,
		},
		Liveness: &api.Check{GRPC: &api.GRPCCheck{Port: 9000, Service: "shop.v1.Cart"}, Timeout: 5, InitialDelay: 30},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	m := api.Microservice{Health: got}
	if f := m.Features(); !slices.Equal(f, []string{api.FeatureHealth, api.FeatureHealthCommand}) {
		t.Errorf("a node needs the features %v, want health and health_command", f)
	}
}

func TestHealthWithoutEffectIsAbsent(t *testing.T) {
	for _, members := range []string{`null`, `{}`, `{"none":false}`, `{"readiness":null,"liveness":{}}`} {
		if got := healthOf(t, members); got != nil {
			t.Errorf("health %s is stored as %+v, want nil", members, got)
		}
	}
	if got := healthOf(t, `{"none":true}`); got == nil || !got.None || !got.Empty() || got.Gates() {
		t.Errorf("health none is stored as %+v, want none and no checks", got)
	}
	if f := (api.Microservice{Health: &api.Health{None: true}}).Features(); len(f) > 0 {
		t.Errorf("no health checks need the features %v of a node, want none", f)
	}
}

func TestFaultsOfHealthChecks(t *testing.T) {
	for _, c := range []struct{ members, pointer, says, fix string }{
		{`{"readiness":{"interval":5}}`, "/readiness", "needs one of http, tcp, grpc, command", "give one of"},
		{`{"readiness":{"tcp":{"port":80},"http":{"port":80}}}`, "/readiness/tcp", "it has http, too", "keep one"},
		{`{"liveness":{"tcp":{}}}`, "/liveness/tcp/port", "port is missing", "give it"},
		{`{"liveness":{"tcp":{"port":0}}}`, "/liveness/tcp/port", "port is 0, out of range", "1 to 65535"},
		{`{"liveness":{"tcp":{"port":65536}}}`, "/liveness/tcp/port", "port is 65536, out of range", "1 to 65535"},
		{`{"liveness":{"tcp":{"port":80,"host":"10.0.0.1"}}}`, "/liveness/tcp/host", `no field "host" here`, ""},
		{`{"liveness":{"http":{"port":80,"path":"healthz"}}}`, "/liveness/http/path", `path cannot be "healthz"`, "/healthz"},
		{`{"liveness":{"http":{"port":80,"path":"/a b"}}}`, "/liveness/http/path", `path cannot be "/a b"`, "without spaces"},
		{`{"liveness":{"http":{"port":80,"path":"/a\r\nHost: x"}}}`, "/liveness/http/path", "path cannot be", "without spaces"},
		{`{"liveness":{"http":{"port":80,"scheme":"ftp"}}}`, "/liveness/http/scheme", `scheme cannot be "ftp"`, "http"},
		{`{"liveness":{"http":{"port":80,"headers":["no colon"]}}}`, "/liveness/http/headers/0", "headers cannot be", "Name: value"},
		{`{"liveness":{"http":{"port":80,"headers":["A: b\r\nC: d"]}}}`, "/liveness/http/headers/0", "headers cannot be", "Name: value"},
		{`{"liveness":{"http":{"port":80,"headers":["A: b","a: c"]}}}`, "/liveness/http/headers/1", "is given twice", "keep one"},
		{`{"liveness":{"http":{"port":80,"headers":["Content-Length: 9"]}}}`, "/liveness/http/headers/0", "controls the connection", "leave it out"},
		{`{"liveness":{"http":{"port":80,"status":"399-200"}}}`, "/liveness/http/status", "ends before it begins", "200-399"},
		{`{"liveness":{"http":{"port":80,"status":"700"}}}`, "/liveness/http/status", `status cannot be "700"`, "200-399"},
		{`{"liveness":{"command":["x"],"interval":4}}`, "/liveness/interval", "too short for a command", "at least 5 s"},
		{`{"liveness":{"command":[""]}}`, "/liveness/command/0", "no program", "name the program"},
		{`{"liveness":{"tcp":{"port":80},"timeout":61}}`, "/liveness/timeout", "timeout is 61, out of range", "0 to 60 s"},
		{`{"liveness":{"tcp":{"port":80},"interval":0.5}}`, "/liveness/interval", "whole number", "round it"},
		{`{"liveness":{"tcp":{"port":80},"successes":2}}`, "/liveness/successes", "successes is 2, out of range", "0 to 1"},
		{`{"none":true,"liveness":{"tcp":{"port":80}}}`, "/none", "cannot be combined with liveness", "leave out"},
		{`{"rediness":{"tcp":{"port":80}}}`, "/rediness", `no field "rediness" here`, "readiness"},
	} {
		faults := faultsOf(t, placed(`"health":`+c.members))
		if len(faults) != 1 || faults[0].Pointer != at+"/health"+c.pointer || !strings.Contains(faults[0].Message, c.says) || !strings.Contains(faults[0].Fix, c.fix) {
			t.Errorf("health %s: got %+v, want one fault at %s that says %q and %q", c.members, faults, c.pointer, c.says, c.fix)
		}
	}
}

func TestChecksAreNamedForPeople(t *testing.T) {
	for want, c := range map[string]api.Check{
		"GET :8080/":                {HTTP: &api.HTTPCheck{Port: 8080}},
		"GET https://:8443/healthz": {HTTP: &api.HTTPCheck{Port: 8443, Path: "/healthz", Scheme: "https"}},
		"TCP :5432":                 {TCP: &api.TCPCheck{Port: 5432}},
		"gRPC :9000 shop.v1.Cart":   {GRPC: &api.GRPCCheck{Port: 9000, Service: "shop.v1.Cart"}},
		"command redis-cli ping":    {Command: []string{"redis-cli", "ping"}},
	} {
		if got := c.String(); got != want {
			t.Errorf("%+v is called %q, want %q", c, got, want)
		}
	}
	if s := (api.Check{Command: []string{strings.Repeat("é", 200)}}).String(); len(s) > 100 {
		t.Errorf("the name of a long command has %d bytes, want at most 100", len(s))
	}
}

// Earlier releases decode the service without its checks and would ignore them.
func TestServicesWithoutChecksAreEncodedAsBefore(t *testing.T) {
	b, err := json.Marshal(api.Microservice{Name: "web"})
	if err != nil || strings.Contains(string(b), "health") {
		t.Errorf("a service without checks is %s, want no field health", b)
	}
}
