package reach

import (
	"net"
	"slices"
	"testing"
)

func TestOf(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7444}
	external, names := Of(at, "", []string{"edge.example"})
	if external != "https://127.0.0.1:7444" || !slices.Contains(names, "edge.example") || !slices.Contains(names, "localhost") {
		t.Errorf("%s, %v", external, names)
	}
	external, names = Of(at, "https://munich.example:443/", nil)
	if external != "https://munich.example:443" || !slices.Contains(names, "munich.example") || !slices.IsSorted(names) {
		t.Errorf("%s, %v", external, names)
	}
	if got := Local(&net.TCPAddr{IP: net.IPv6unspecified, Port: 1}); got != "127.0.0.1:1" {
		t.Error(got)
	}
}

func TestValid(t *testing.T) {
	for text, want := range map[string]bool{
		"https://a:1": true, "https://a/": true, "http://a": false, "https://": false,
		"https://u:p@a": false, "https://a/x": false, "https://a?x=1": false, "a:1": false,
	} {
		if Valid(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}
