package command_test

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestABundleHasNoSecrets looks for each secret of an application and of the session in the whole archive.
func TestABundleHasNoSecrets(t *testing.T) {
	r := newRig(t)
	r.signIn()
	sla := strings.Replace(shop, `replicas: 2`, `replicas: 2, environment: ["PASSWORD=correct-horse"], cmd: ["run", "--key=battery-staple"]`, 1)
	r.must("", "apply", "-f", r.file("shop.yaml", sla), "--detach")
	token := strings.TrimSpace(r.must("", "token", "create", "--name", "ci", "--token-only"))
	path := filepath.Join(r.dir, "bundle.tar.gz")
	r.must("", "debug", "bundle", path, "--token-file", r.file("token", token+"\n"))
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"correct-horse", "battery-staple", token, strings.Split(token, ".")[2], "refresh"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("the bundle contains the secret %.20q", secret)
		}
	}
	for _, want := range []string{"treeline-bundle/versions.json", "doctor.json", "instances.json", "events.json", "why/acme~shop.prod.web.v1~0.json", "registry.example/web:1", "no_cluster"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the bundle does not contain %s", want)
		}
	}
	if _, _, code := r.run("", "debug", "bundle", path); code != 2 {
		t.Errorf("a bundle replaces a file: exit %d", code)
	}
}
