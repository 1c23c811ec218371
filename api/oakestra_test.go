package api_test

import (
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// Empty values in Oakestra's own documents have no effect.
func TestEmptyListsOfOakestraAreTaken(t *testing.T) {
	for _, more := range []string{
		`"connectivity":[{"target_microservice_id":"e.f","con_constraints":[]}]`, `"args":[""]`, `"added_files":[""]`,
		`"addresses":{"instances":[{"from":"0","to":"0","start":"10.30.0.9"}]}`,
	} {
		if _, err := api.ParseSLA(two(more)); err != nil {
			t.Errorf("document with %s: %v, want it accepted", more, err)
		}
	}
}

// TestVirtualMachines has what virtual machines may have, and what they may not.
func TestVirtualMachines(t *testing.T) {
	parse := func(members string) error {
		_, err := api.ParseSLA([]byte(`{"sla_version":"v2.0","applications":[{"application_name":"a","application_namespace":"b","microservices":[
			{"microservice_name":"c","microservice_namespace":"d",` + members + `}]}]}`))
		return err
	}
	for _, ok := range []string{
		`"virtualization":"unikernel","memory":400,"code":"https://example.org/a.tar.gz"`,
		`"virtualization":"unikernel","memory":400,"arch":["amd64","arm64"],"code":"https://a.example/x.tar.gz,http://b.example/y.tgz"`,
		`"virtualization":"unikernel","memory":128,"code":"registry.example/uk:1"`,
		`"virtualization":"microvm","memory":128,"code":"registry.example/vm:1","environment":["A=b"],"port":"80","health":{"liveness":{"tcp":{"port":80}}}`,
	} {
		if err := parse(ok); err != nil {
			t.Errorf("%s: got %v, want no error", ok, err)
		}
	}
	const vm = `"virtualization":"microvm","memory":256,"code":"x"`
	for members, want := range map[string]string{
		`"virtualization":"microvm","code":"x"`:                                                        "/memory: a virtual machine needs memory",
		`"virtualization":"microvm","code":"x","memory":127`:                                           "/memory: a virtual machine needs memory",
		`"virtualization":"microvm","memory":256,"code":"https://example.org/a.tar.gz"`:                "/code: code has a scheme",
		`"virtualization":"unikernel","memory":256,"code":"ftp://example.org/a.tar.gz"`:                "/code: code ftp://example.org/a.tar.gz is no URL",
		`"virtualization":"unikernel","memory":256,"code":"https://u:p@example.org/a.tar.gz"`:          "/code: code has a password",
		`"virtualization":"unikernel","memory":256,"code":"https://a.example/x,https://b.example/y"`:   "/code: code has 2 URLs for 0 architectures",
		`"virtualization":"unikernel","memory":256,"code":"https://a.example/x","environment":["A=b"]`: "/environment: ",
		vm + `,"privileged":true`:                                "/privileged: privileged is not supported for a virtual machine",
		vm + `,"vgpus":1`:                                        "/vgpus: ",
		vm + `,"files":[{"path":"/a","content":"b"}]`:            "/files: virtualization microvm cannot have files",
		vm + `,"health":{"readiness":{"command":["/bin/true"]}}`: "/health/readiness/command: a command cannot be run in a virtual machine",
	} {
		if err := parse(members); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", members, err, want)
		}
	}
}

// An IPv6 address determines the IPv4 address in its last 32 bits, and must not contradict a given
// one.
func TestAnIPv6AddressBelongsToAnIPv4Address(t *testing.T) {
	for _, c := range []struct{ addresses, four, six string }{
		{`{"rr_ip":"10.30.1.1","rr_ip_v6":"fd74:6c6e:2::a1e:101"}`, "10.30.1.1", "fd74:6c6e:2::a1e:101"},
		{`{"rr_ip":"auto","rr_ip_v6":"FD74:6C6E:2:0::0A1E:0101"}`, "10.30.1.1", "fd74:6c6e:2::a1e:101"},
		{`{"rr_ip_v6":"fd74:6c6e:2::10.30.1.1"}`, "10.30.1.1", "fd74:6c6e:2::a1e:101"},
		{`{"rr_ip":"10.30.1.1","rr_ip_v6":"auto"}`, "10.30.1.1", ""},
		{`{"rr_ip":"10.30.1.1","rr_ip_v6":""}`, "10.30.1.1", ""},
	} {
		sla, err := api.ParseSLA(two(`"addresses":` + c.addresses))
		if err != nil {
			t.Errorf("addresses %s: %v, want them accepted", c.addresses, err)
			continue
		}
		if a := sla.Applications[0].Services[0].Addresses; a == nil || a.RoundRobin != c.four || a.RoundRobin6 != c.six {
			t.Errorf("%s is %+v", c.addresses, a)
		}
	}
	for addresses, want := range map[string]string{
		`{"rr_ip":"10.30.55.55","rr_ip_v6":"fdff:2000::55:55"}`: "rr_ip_v6: fdff:2000::55:55 does not belong to rr_ip 10.30.55.55",
		`{"rr_ip_v6":"10.30.1.1"}`:                              "is not an IPv6 address",
		`{"rr_ip_v6":"fe80::1%eth0"}`:                           "is not an IPv6 address",
		`{"rr_ip_v6":"::ffff:10.30.1.1"}`:                       "is not an IPv6 address",
		`{"closest_ip_v6":"fd74:6c6e:2::a1e:101"}`:              "follows from the IPv4 address",
	} {
		if _, err := api.ParseSLA(two(`"addresses":` + addresses)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q, got %v", addresses, want, err)
		}
	}
}

// The program of a process may be a file URL, which the runtime gets as a path. The image of a
// container may not.
func TestFileURLsAreProgramsAndNoImages(t *testing.T) {
	sla, err := api.ParseSLA(placedAs("process", "file:///usr/local/bin/web"))
	if err != nil || sla.Applications[0].Services[0].Code != "/usr/local/bin/web" {
		t.Errorf("file URL of a process: %+v, %v, want the path without the scheme", sla, err)
	}
	for _, code := range []string{"file://usr/bin/web", "file:////../x", "file://", "FILE:///usr/bin/web"} {
		if _, err := api.ParseSLA(placedAs("process", code)); err == nil {
			t.Errorf("%s passes as a program", code)
		}
	}
	_, err = api.ParseSLA(placedAs("container", "file:///images/web.tar"))
	if err == nil || !strings.Contains(err.Error(), "is a file") || !strings.Contains(err.Error(), "image_dirs") {
		t.Errorf("got %v", err)
	}
}

func placedAs(virtualization, code string) []byte {
	return []byte(`{"sla_version":"v2.0","applications":[{"application_name":"a","application_namespace":"b","microservices":[
		{"microservice_name":"c","microservice_namespace":"d","virtualization":"` + virtualization + `","code":"` + code + `"}]}]}`)
}
