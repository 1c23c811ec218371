package addon_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/addon"
)

func pkg(sla string) api.AddonPackage {
	return api.AddonPackage{
		Name: "mqtt", Version: "1.2.3", SLA: json.RawMessage(sla),
		Parameters: json.RawMessage(`{"properties": {"image": {"type": "string", "default": "x:1"}, "port": {"type": "integer", "default": 1883}, "args": {"type": "array"}, "on": {"type": "boolean"}}}`),
	}
}

func TestValuesAreFilledIn(t *testing.T) {
	values := map[string]json.RawMessage{"args": json.RawMessage(`["-v", "${{image}}"]`), "on": json.RawMessage(`true`)}
	for in, want := range map[string]string{
		`{"a": "${{ image }}"}`:                  `{"a":"x:1"}`,
		`{"a": "${{port}}"}`:                     `{"a":1883}`,
		`{"a": "${{port}}:${{port}}/${{ on }}"}`: `{"a":"1883:1883/true"}`,
		`["${{args}}"]`:                          `[["-v","${{image}}"]]`, // values are not filled in again
		`{"${{image}}": "${image} {{image}}"}`:   `{"${{image}}":"${image} {{image}}"}`,
		`{"a": "${{none}}"}`:                     "none",
		`{"a": "x${{args}}"}`:                    "args",
		`{"a": "${{ image"}`:                     "begins no parameter",
		`{"a": "${{ ${{image}}"}`:                "begins no parameter",
		`{"a": 1} {}`:                            "one JSON value",
	} {
		f, err := addon.Fill(pkg(in), values)
		switch {
		case err == nil && string(f.SLA) != want:
			t.Errorf("%s becomes %s, want %s", in, f.SLA, want)
		case err != nil && (!errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
}

func TestVersions(t *testing.T) {
	for v, want := range map[string]bool{"1.0.0": true, "1.0.0-rc.1": true, "1.0": false, "v1.0.0": false, "1": false, "": false, "1.0.0+b": true, "01.0.0": false, strings.Repeat("1", 90) + ".0.0": false} {
		p := pkg(`{}`)
		p.Version = v
		if err := addon.Check(p); (err == nil) != want {
			t.Errorf("version %q: %v", v, err)
		}
	}
	p := pkg(`{}`)
	p.MinTreeline = "0.5.0"
	for v, want := range map[string]bool{"0.5.0": true, "v0.5.1": true, "0.4.9": false, "0.5.0-rc.1": false, "devel": true, "": true} {
		if addon.Runs(p, v) != want {
			t.Errorf("a root of version %q: %v, want %v", v, !want, want)
		}
	}
}
