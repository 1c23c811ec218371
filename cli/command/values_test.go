package command_test

import (
	"strings"
	"testing"
)

func TestConfigsAndSecrets(t *testing.T) {
	r := newRig(t)
	r.signIn()
	const marked = "marked-value-of-the-cli"
	r.must(marked, "create", "secret", "db", "--from-file", "password=-", "--from-file", r.file("user", "alice\n"))
	r.must("colour = blue\n", "create", "config", "web", "--from-file", "main=-")
	for _, tt := range []struct {
		args  string
		code  int
		texts []string
	}{
		{"get secrets", 0, []string{"NAME", "db", "password, user", "0 services"}},
		{"get secret db -o json", 0, []string{`"version": 1`, `"name": "password"`}},
		{"get secret acme/db -o name", 0, []string{"acme/db"}},
		{"get configs -o wide", 0, []string{"web", "DIGEST"}},
		{"get config web -o json", 0, []string{"Y29sb3VyID0gYmx1ZQo="}},
		{"describe secret db", 0, []string{"Secret:", "acme/db", "password, 23 bytes", "version 1 by"}},
		{"describe config web -o yaml", 0, []string{"kind: config"}},
		{"get secret none", 6, nil},
		{"create secret db --from-file password=-", 7, []string{"exists"}},
		{"create secret db --replace --from-file password=-", 0, []string{"version 2"}},
		{"create secret none --replace --from-file password=-", 6, nil},
		{"create secret x", 2, []string{"--from-file KEY=FILE"}},
		{"create secret x --from-file -", 2, []string{"KEY=-"}},
		{"create secret x --from-file a=/no/such/file", 2, []string{"no such file"}},
		{"create secret x --from-file a=- --from-file a=-", 2, []string{"twice"}},
		{"create secret X --from-file a=-", 1, []string{"lower-case"}},
		{"create secret pull --registry registry.example --username bob", 2, []string{"--password-file"}},
		{"create secret pull --registry registry.example --username bob --password-file -", 0, []string{"version 1"}},
		{"create config web2 --registry registry.example", 2, []string{"--registry"}},
		{"delete secret db pull --yes", 0, []string{"secret acme/db deleted"}},
		{"delete config web --yes", 0, []string{"deleted"}},
		{"get secrets", 0, []string{"no secrets"}},
	} {
		out, stderr, code := r.run(marked, strings.Fields(tt.args)...)
		if code != tt.code {
			t.Errorf("treeline %s: exit %d, want %d\n%s%s", tt.args, code, tt.code, out, stderr)
		}
		for _, text := range tt.texts {
			if !strings.Contains(out+stderr, text) {
				t.Errorf("treeline %s prints\n%s%swant %q", tt.args, out, stderr, text)
			}
		}
		if strings.Contains(out+stderr, marked) {
			t.Errorf("treeline %s prints the value\n%s%s", tt.args, out, stderr)
		}
	}
}

func TestFilesOfAServiceAreDescribedWithoutTheirText(t *testing.T) {
	r := newRig(t)
	r.signIn()
	r.must("x", "create", "secret", "db", "--from-file", "password=-")
	r.must("", "apply", "--detach", "-f", r.file("files.yaml", `
sla_version: v2.0
applications:
  - application_name: shop
    application_namespace: prod
    microservices:
      - microservice_name: web
        microservice_namespace: prod
        virtualization: container
        code: example.org/web:1
        files:
          - {path: /etc/db, secret: db, on_change: "signal:SIGHUP"}
          - {path: /etc/motd, content: "a long text", mode: "0640", template: true}
`))
	out := r.must("", "describe", "service", "shop/web")
	for _, want := range []string{"/etc/db from secret db, mode 0400, on change signal SIGHUP", "/etc/motd, 11 bytes of the SLA, mode 0640, template"} {
		if !strings.Contains(out, want) {
			t.Errorf("the service is described as\n%swant %q", out, want)
		}
	}
	if out := r.must("", "describe", "secret", "db"); !strings.Contains(out, "shop.prod.web.prod") {
		t.Errorf("the secret is described as\n%swant the service that uses it", out)
	}
	if _, stderr, code := r.run("", "delete", "secret", "db", "--yes"); code != 7 || !strings.Contains(stderr, "used by service shop.prod.web.prod") {
		t.Errorf("delete a secret in use: exit %d, %s", code, stderr)
	}
	r.must("", "delete", "secret", "db", "--yes", "--force")
}
