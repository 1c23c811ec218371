package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// addonDir writes a package mqtt with a kind, a resource and parameters. more is added to addon.yaml.
func addonDir(t *testing.T, more string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"addon.yaml":            "name: mqtt\nversion: 1.0.0\nparameters:\n  properties:\n    unit: {type: string, default: '1'}\n    most: {type: integer, default: 3}\n" + more,
		"kinds/topic.yaml":      "kind: kind\nname: topic\nschema: {type: object, required: [unit], properties: {unit: {type: string}, most: {type: integer}}}\n",
		"resources/uptime.yaml": "kind: topic\nname: uptime\nspec: {unit: '${{ unit }}', most: '${{ most }}'}\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestAddonsFromDirectoriesAndFiles(t *testing.T) {
	r := newRig(t)
	r.signIn()
	dir := addonDir(t, "webhooks:\n  - url: https://hooks.example.org/${{ unit }}\n")
	file := filepath.Join(r.dir, "mqtt.tar")
	r.must("", "addon", "pack", dir, "-o", file)
	out, said, code := r.run("", "addon", "install", file, "--set", "unit=5")
	if code != 0 || !strings.Contains(said, "addon acme/mqtt 1.0.0 installed (sha256:") || !strings.Contains(said, "resource acme/topic:uptime created") || len(strings.TrimSpace(out)) < 20 {
		t.Errorf("install: exit %d, prints %q and says %q", code, out, said)
	}
	if spec := r.must("", "get", "resources", "topic:uptime", "-o", "jsonpath={.spec}"); !strings.Contains(spec, `"unit":"5"`) || !strings.Contains(spec, `"most":3`) {
		t.Errorf("the resource is %s", spec)
	}
	if _, said, code := r.run("", "addon", "install", dir); code == 0 || !strings.Contains(said, "treeline addon upgrade") {
		t.Errorf("install again: exit %d, says %q", code, said)
	}
	if _, said, code := r.run("", "addon", "upgrade", dir, "--set", "most=many"); code == 0 || !strings.Contains(said, "most") {
		t.Errorf("a value of another type: exit %d, says %q", code, said)
	}
	if _, said, code := r.run("", "addon", "upgrade", dir, "--set", "most"); code != 2 {
		t.Errorf("--set without a value: exit %d, says %q", code, said)
	}
	_, said, code = r.run("", "addon", "upgrade", dir, "--set", "most=7")
	if code != 0 || !strings.Contains(said, "resource acme/topic:uptime changed") || strings.Contains(said, "webhook") {
		t.Errorf("upgrade: exit %d, says %q", code, said)
	}
	if spec := r.must("", "get", "resources", "topic:uptime", "-o", "jsonpath={.spec}"); !strings.Contains(spec, `"unit":"5"`) || !strings.Contains(spec, `"most":7`) {
		t.Errorf("after the upgrade the resource is %s", spec)
	}
	if text := r.must("", "addon", "list"); !strings.Contains(text, "mqtt") || !strings.Contains(text, "1.0.0") {
		t.Errorf("list: %s", text)
	}
	if text := r.must("", "addon", "inspect", file); !strings.Contains(text, `"version": "1.0.0"`) {
		t.Errorf("inspect: %s", text)
	}
	if _, said, code := r.run("", "addon", "inspect", "./none"); code == 0 || !strings.Contains(said, "none") {
		t.Errorf("inspect what does not exist: exit %d, says %q", code, said)
	}
	r.must("", "addon", "remove", "mqtt", "--yes")
	if text := r.must("", "get", "kinds", "-o", "name"); text != "" {
		t.Errorf("after the removal: %s", text)
	}
}
