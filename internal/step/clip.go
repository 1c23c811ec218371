package step

import "strings"

// mostClipped is how many bytes of a text Clip leaves.
const mostClipped = 1024

// Clip bounds what others may have a core store by way of explanation: the first
// 1 KiB of it, and a sign that there was more. No character is cut in two.
func Clip(text string) string {
	if len(text) <= mostClipped {
		return text
	}
	return strings.ToValidUTF8(text[:mostClipped], "") + "…"
}
