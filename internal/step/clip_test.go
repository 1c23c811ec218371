package step

import (
	"strings"
	"testing"
)

func TestLongTextIsClippedBetweenCharacters(t *testing.T) {
	full := strings.Repeat("a", 1024)
	for text, want := range map[string]string{
		"":                      "",
		"no room":               "no room",
		full:                    full,
		full + "b":              full + "…",
		full[1:] + "é and more": full[1:] + "…", // only the first byte of é would fit
	} {
		if got := Clip(text); got != want {
			t.Errorf("of %d bytes are left %d, not %d", len(text), len(got), len(want))
		}
	}
}
