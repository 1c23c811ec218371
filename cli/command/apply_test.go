package command

import "testing"

func TestContentType(t *testing.T) {
	const asJSON, asYAML = "application/json", "application/yaml"
	tests := []struct{ file, doc, want string }{
		{"a.yaml", `{sla_version: v2.0}`, asYAML},
		{"a.yml", `{"sla_version": "v2.0"}`, asYAML},
		{"dir.json/a.YAML", `[]`, asYAML},
		{"a.json", `sla_version: v2.0`, asJSON},
		{"https://example.org/a.yaml?x=.json", `{`, asYAML},
		{"https://example.org/a.json#x.yaml", `{`, asJSON},
		{"-", `{"sla_version": "v2.0"}`, asJSON},
		{"-", "{ \n \"sla_version\": \"v2.0\",}", asJSON},
		{"-", `{sla_version: v2.0}`, asYAML},
		{"-", `sla_version: v2.0`, asYAML},
		{"-", `[]`, asJSON},
		{"a.txt", "\ufeff {\"a\":1}", asJSON},
		{"C:\\sla.yaml", "{a: 1}", asYAML},
	}
	for _, tt := range tests {
		if got := contentType(tt.file, []byte(tt.doc)); got != tt.want {
			t.Errorf("contentType(%q, %q) is %s, want %s", tt.file, tt.doc, got, tt.want)
		}
	}
}
