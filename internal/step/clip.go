package step

import "strings"

// maxClipped is the number of bytes that Clip leaves.
const maxClipped = 1024

// Clip bounds a text from outside before a core stores it. It keeps the first 1 KiB, without
// splitting a character, and appends "…" if it cut something.
func Clip(text string) string {
	if len(text) <= maxClipped {
		return text
	}
	return strings.ToValidUTF8(text[:maxClipped], "") + "…"
}
