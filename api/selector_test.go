package api_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestSelectorsMatchLabels(t *testing.T) {
	labels := map[string]string{"team": "web", "tier": ""}
	for text, want := range map[string]bool{
		"team=web": true, "team=data": false, "team!=web": false, "team!=data": true, "team": true, "!team": false,
		"tier=": true, "tier": true, "none": false, "!none": true, "none!=x": true, "none=": false,
	} {
		s, err := api.ParseSelectors([]string{text})
		if err != nil {
			t.Fatalf("ParseSelectors(%q): %v", text, err)
		}
		if got := api.Mismatch(s, labels) < 0; got != want {
			t.Errorf("%q matches %v: %v, want %v", text, labels, got, want)
		}
		if s[0].String() != text {
			t.Errorf("selector %q becomes %q", text, s[0])
		}
	}
	for _, text := range []string{"", "=", "=x", "!", "!a=b", "a=b=c;", "a b", "-a", strings.Repeat("k", 129), "a=" + strings.Repeat("v", 129)} {
		if _, err := api.ParseSelectors([]string{"team", text}); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("ParseSelectors(%q): %v, want ErrInvalid", text, err)
		}
	}
}

// TestLabelsAreChecked has the faults of labels of services, which are those of applications.
func TestLabelsAreChecked(t *testing.T) {
	if _, err := api.ParseSLA([]byte(placed(`"labels":{"example.org/team":"web","tier":""}`))); err != nil {
		t.Errorf("labels: %v", err)
	}
	var many []string
	for i := range api.MaxLabels + 1 {
		many = append(many, `"k`+strings.Repeat("x", i)+`":"v"`)
	}
	for members, want := range map[string]string{
		`"labels":{"a b":"c"}`:                       `labels cannot have the key "a b"`,
		`"labels":{"a=b":"c"}`:                       `labels cannot have the key "a=b"`,
		`"labels":{"a":"b;c"}`:                       `labels cannot be "b;c"`,
		`"labels":{"a":1}`:                           `labels must be a string`,
		`"labels":["a=b"]`:                           `labels must be an object`,
		`"labels":{` + strings.Join(many, ",") + `}`: `labels has 65 entries`,
		`"node_selector":{"disk":"ssd"}`:             `there is no field "node_selector"`,
	} {
		faults := faultsOf(t, placed(members))
		if len(faults) != 1 || !strings.Contains(faults[0].Message, want) {
			t.Errorf("%.60s: faults %v, want one with %q", members, faults, want)
		}
		if strings.Contains(members, "node_selector") && !strings.Contains(faults[0].Fix, "constraints") {
			t.Errorf("node_selector: fix %q, want constraints", faults[0].Fix)
		}
	}
}
