package step

import "strings"

// maxClipped is the number of bytes that Clip leaves.
const maxClipped = 1024

// Clip bounds an explanation from outside before a core stores it: it keeps the first 1 KiB
// and marks the cut. It does not split characters.
func Clip(text string) string {
	if len(text) <= maxClipped {
		return text
	}
	return strings.ToValidUTF8(text[:maxClipped], "") + "…"
}
