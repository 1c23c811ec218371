package jsonsize_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/jsonsize"
)

func TestTextsBeyondALimitAreRefused(t *testing.T) {
	l := jsonsize.Limit{Bytes: 40, Objects: 2, Values: 5}
	for text, ok := range map[string]bool{
		`{"a":[{}]}`:            true,
		`{"a":{},"b":1,"c":2}`:  true,
		`[{},{},{}]`:            false,
		`[1,2,3,4,5]`:           true,
		`[1,2,3,4,5,6]`:         false,
		`["{{{,,,,,[[[\",,,"]`:  true,
		strings.Repeat(" ", 41): false,
	} {
		got, err := l.Read(strings.NewReader(text))
		if (err == nil) != ok || ok && string(got) != text || !ok && !errors.Is(err, api.ErrTooLarge) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

// The counts are never below what a decoder finds.
func TestCountsAreNotBelowWhatADecoderFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var draw func(depth int) any
		draw = func(depth int) any {
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				if depth == 0 {
					return nil
				}
				list := []any{}
				for range rapid.IntRange(0, 4).Draw(t, "elements") {
					list = append(list, draw(depth-1))
				}
				return list
			case 1:
				if depth == 0 {
					return true
				}
				object := map[string]any{}
				for range rapid.IntRange(0, 4).Draw(t, "members") {
					object[rapid.StringOf(rapid.SampledFrom([]rune(`a{}[],"\`))).Draw(t, "key")] = draw(depth - 1)
				}
				return object
			case 2:
				return rapid.StringOf(rapid.SampledFrom([]rune(`a{}[],"\`))).Draw(t, "text")
			}
			return rapid.IntRange(-5, 5).Draw(t, "number")
		}
		v := draw(4)
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var objects, values int
		var walk func(any)
		walk = func(v any) {
			values++
			switch v := v.(type) {
			case []any:
				for _, e := range v {
					walk(e)
				}
			case map[string]any:
				objects++
				for _, e := range v {
					walk(e)
				}
			}
		}
		walk(v)
		// A value that is not the first of its object or array follows a comma; the first
		// follows a bracket.
		if o, n := jsonsize.Count(text); o != objects || n < values-1 {
			t.Fatalf("%s: counted %d objects and %d values, a decoder finds %d and %d", text, o, n, objects, values)
		}
	})
}
