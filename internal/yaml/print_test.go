package yaml_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/internal/yaml"
)

func TestFromJSONKeepsTheOrder(t *testing.T) {
	got, err := yaml.FromJSON([]byte(`{"b":1,"a":["x",{"c":null}],"d":"yes","e":"1"}`))
	want := "b: 1\na:\n  - x\n  - c: null\nd: \"yes\"\ne: \"1\"\n"
	if err != nil || string(got) != want {
		t.Fatalf("got %s, %v", got, err)
	}
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	tricky := rapid.SampledFrom([]string{
		"", "yes", "1", "1.0", "0x1", "null", "~", "- a", "a: b", "#x", "a #b", "&a", "*a", "!a", "|", ">", "%a", "@a", "`a", "{", "[", "'", `"`,
		"a\nb", "a\n", "\n", " a", "a ", "\ta", "true", ".inf", "1e3", "2001-01-01", "<<", "=", "---", "...", "a\\b", "\x7f", "é", "😀", "\u2028", "\r\n", "?", ":", "-",
	})
	text := rapid.OneOf(tricky, rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		value := map[string]any{"s": text.Draw(t, "s"), "l": []any{text.Draw(t, "l"), float64(rapid.Int32().Draw(t, "n")), []any{[]any{}, []any{text.Draw(t, "ll")}}, map[string]any{}, map[string]any{"a": []any{1.5, map[string]any{"z": nil}}, "b": 2.0}}, "m": map[string]any{text.Draw(t, "k"): true}}
		doc, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		written, err := yaml.FromJSON(doc)
		if err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		read, err := yaml.ToJSON(written)
		if err != nil {
			t.Fatalf("%s became %s: %v", doc, written, err)
		}
		var again map[string]any
		if err := json.Unmarshal(read, &again); err != nil || !reflect.DeepEqual(value, again) {
			t.Fatalf("%s became %s became %s, %v", doc, written, read, err)
		}
	})
}
