package yaml_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/yaml"
)

func TestToJSON(t *testing.T) {
	tests := []struct{ name, doc, want string }{
		{"scalars", "a: 1\nb: 0.25\nc: yes\nd: true\ne: ~\nf: \"7\"\ng:\n", `{"a":1,"b":0.25,"c":"yes","d":true,"e":null,"f":"7","g":null}`},
		{"numbers", "a: -3\nb: 0x10\nc: 1.5\nd: 12345678901234567890\n", `{"a":-3,"b":16,"c":1.5,"d":12345678901234567890}`},
		{"more numbers", "a: 1e3\nb: +1\nc: 0o17\nd: .5\ne: -0x1\nf: 1_000\ng: 123456789012345678901234567890\n", `{"a":1e3,"b":1,"c":15,"d":0.5,"e":-1,"f":1000,"g":123456789012345678901234567890}`},
		{"text", "a: yes\nb: 2001-01-01\nc: 10:30\nd: 1.2.3\ne: <<\nf: '2'\ng: \"\\u00e9\"\n", `{"a":"yes","b":"2001-01-01","c":"10:30","d":"1.2.3","e":"\u003c\u003c","f":"2","g":"é"}`},
		{"lists", "a:\n- x\n- b: 1\n  c: 2\n- [1, {d: e}]\n", `{"a":["x",{"b":1,"c":2},[1,{"d":"e"}]]}`},
		{"one member", "a: {b: c}", `{"a":{"b":"c"}}`},
		{"literal", "a: |\n  one\n  two\nb: >-\n  x\n  y\n", `{"a":"one\ntwo\n","b":"x y"}`},
		{"comments and a marker", "# hello\n---\na: b # there\n", `{"a":"b"}`},
		{"aliases are written out", "a: &x [1]\nb: *x\n", `{"a":[1],"b":[1]}`},
		{"empty collections", "a: []\nb: {}\n", `{"a":[],"b":{}}`},
		{"JSON stays as it is", `{"a":1,"a":2}`, `{"a":1,"a":2}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := yaml.ToJSON([]byte(tt.doc))
			if err != nil || string(got) != tt.want {
				t.Fatalf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct{ name, doc, says string }{
		{"key twice", "a: 1\nb: 2\na: 3\n", "line 3, column 1"},
		{"bad indent", "a:\n  b: 1\n c: 2\n", "line 3"},
		{"open bracket", "a: [1, 2\n", "line 2"},
		{"tag", "a: !!binary aGk=\n", "line 1, column 4: tags"},
		{"text like a tag", "a: 1\nlabels: [rack, !retired]\n", "line 2, column 16: tags such as !retired"},
		{"open bracket within", "a: 1\nb: [1\nc: 2\n", "line 2"},
		{"text like a tag in a list", "labels:\n  - !retired\n", "line 2, column 5: tags such as !retired"},
		{"merge", "a: &x {b: 1}\nc:\n  <<: *x\n", "line 3, column 3: merge keys"},
		{"key that is no text", "1: a\n", "line 1, column 1: the key 1 is not text"},
		{"two documents", "a: 1\n---\nb: 2\n", "line 3"},
		{"unknown alias", "a: *x\n", "unknown anchor 'x'"},
		{"alias of itself", "a: &x [*x]\n", "nested deeper than 32"},
		{"infinity", "a: .inf\n", "not a number"},
		{"directive", "%YAML 1.2\n---\na: 1\n", "line 1, column 1: directives"},
		{"leading zero", "a: 1\nmemory: 0100\n", "line 2, column 9: 0100 may be octal or decimal"},
		{"alias as key", "a: &x b\n*x : 1\n", "line 2, column 1: a key must be text"},
		{"anchor of a key", "&x a: b\n", "line 1, column 1: anchors of keys"},
		{"missing quote", "a: 1\nb: \"x\nc: 1\n", "line 2: found unexpected end"},
		{"empty", "# nothing\n", "empty"},
		{"binary", "\xff\xfe", "UTF-8"},
		{"brackets", "a: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "nested deeper than 32"},
		{"dashes", strings.Repeat("- ", 5000) + "a", "nested deeper than 32"},
		{"questions", strings.Repeat("? ", 5000) + "a", "line 1, column 3: a key must be text"},
		{"indentation", stairs(100), "nested deeper than 32"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := yaml.ToJSON([]byte(tt.doc))
			if !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("want invalid and %q, got %v", tt.says, err)
			}
		})
	}
}

func stairs(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func TestTooLarge(t *testing.T) {
	bomb := "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 12 {
		prev, name := string(rune('a'+i))+"0", string(rune('b'+i))+"0"
		bomb += name + ": &" + name + " [*" + prev + strings.Repeat(", *"+prev, 9) + "]\n"
	}
	for name, doc := range map[string]string{
		"alias bomb": bomb,
		"big":        "a: " + strings.Repeat("x", yaml.MaxBytes),
	} {
		if _, err := yaml.ToJSON([]byte(doc)); !errors.Is(err, api.ErrTooLarge) {
			t.Errorf("%s: %v, want ErrTooLarge", name, err)
		}
	}
}

func FuzzToJSON(f *testing.F) {
	for _, doc := range []string{"a: 1", "- a\n- b: c", "a: &x [1]\nb: *x", "? a\n: b", "a: |\n x", "{a: b, c: [d]}", "--- a\n...\n", "!!str 1"} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		out, err := yaml.ToJSON(doc)
		if err != nil {
			if !errors.Is(err, api.ErrInvalid) && !errors.Is(err, api.ErrTooLarge) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		if !json.Valid(out) {
			t.Fatalf("%q became %q", doc, out)
		}
	})
}
