package ref_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/ref"
)

var instances = []string{
	"acme/shop.prod.web.v1#0", "acme/shop.prod.web.v1#1", "acme/shop.prod.web.v1#10",
	"acme/shop.prod.webcache.v1#0", "acme/shop.test.web.v1#0",
	"acme/shopping.prod.list.v1#0", "acme/lab/video.prod.detect.v1#0", "beta/shop.prod.db.v1#0",
}

func TestInstances(t *testing.T) {
	for _, tt := range []struct {
		reference string
		own       api.Tenant
		want      string // "" is none, "a | b" is ambiguous
	}{
		{"acme/shop.prod.web.v1#1", "acme", "acme/shop.prod.web.v1#1"},
		{"shop.prod.web.v1#1", "acme", "acme/shop.prod.web.v1#1"},
		{"shop.prod/web.v1#1", "acme", "acme/shop.prod.web.v1#1"},
		{"shop.prod/web#1", "acme", "acme/shop.prod.web.v1#1"},
		{"acme/shop.prod/web#1", "", "acme/shop.prod.web.v1#1"},
		{"shop/web#1", "acme", "acme/shop.prod.web.v1#1"}, // the other application has no #1
		{"shop/web#0", "acme", "acme/shop.prod.web.v1#0 | acme/shop.test.web.v1#0"},
		{"shop/webc*#0", "acme", "acme/shop.prod.webcache.v1#0"},
		{"shop/webc*", "acme", "acme/shop.prod.webcache.v1#0"},
		{"shop/webcache", "acme", "acme/shop.prod.webcache.v1#0"},
		{"shop.t*/w*", "acme", "acme/shop.test.web.v1#0"},
		{"shop.prod.webc*", "acme", "acme/shop.prod.webcache.v1#0"},
		{"shop.prod.webcache", "acme", "acme/shop.prod.webcache.v1#0"},
		{"shoppi*", "acme", "acme/shopping.prod.list.v1#0"},
		{"shopping", "acme", "acme/shopping.prod.list.v1#0"},
		// Incomplete parts do not match: h does not match hello.
		{"shoppi", "acme", ""},
		{"shop/webc", "acme", ""},
		{"shop/webc#0", "acme", ""},
		{"shop.prod.webc", "acme", ""},
		{"s", "acme", ""},
		{"[", "acme", ""},
		{"[*", "acme", ""},
		{"shop.prod.web.v1", "acme", "acme/shop.prod.web.v1#0 | acme/shop.prod.web.v1#1 | acme/shop.prod.web.v1#10"},
		{"shop/db#0", "acme", "beta/shop.prod.db.v1#0"},
		{"acme/lab/video/detect#0", "", "acme/lab/video.prod.detect.v1#0"},
		{"video/detect", "acme", "acme/lab/video.prod.detect.v1#0"},
		{"beta/shop/web#0", "acme", ""},
		{"shop/web#2", "acme", ""},
		{"shop/web#x", "acme", ""},
		{"#0", "acme", ""},
		{"", "acme", ""},
	} {
		got, err := ref.Find(ref.Instance, tt.reference, tt.own, instances)
		var several *ref.Ambiguous
		switch {
		case errors.As(err, &several):
			got = strings.Join(several.Candidates, " | ")
		case err != nil && !errors.Is(err, api.ErrNotFound) && !errors.Is(err, api.ErrInvalid):
			t.Errorf("reference %q: %v, want ErrNotFound or ErrInvalid", tt.reference, err)
		}
		if got != tt.want {
			t.Errorf("%q in %q is %q, want %q", tt.reference, tt.own, got, tt.want)
		}
	}
}

func TestAppsAndServices(t *testing.T) {
	apps := []string{"acme/shop.prod", "acme/shopping.prod", "acme/shop.test"}
	for reference, want := range map[string]string{
		"shop.prod": "acme/shop.prod", "shopp*": "acme/shopping.prod", "shopp": "", "shopping": "acme/shopping.prod", "acme/shop.test": "acme/shop.test", "shop": "", "acme/shopping": "acme/shopping.prod",
	} {
		if got, _ := ref.Find(ref.App, reference, "acme", apps); got != want {
			t.Errorf("%q is %q, want %q", reference, got, want)
		}
	}
	services := []string{"acme/shop.prod.web.v1", "acme/shop.prod.webcache.v1"}
	for reference, want := range map[string]string{
		"shop/web": "acme/shop.prod.web.v1", "shop/w": "", "shop.prod.web.v1": "acme/shop.prod.web.v1", "shop/web#0": "",
	} {
		if got, _ := ref.Find(ref.Service, reference, "acme", services); got != want {
			t.Errorf("%q is %q, want %q", reference, got, want)
		}
	}
}

func TestErrorsSayWhatToWrite(t *testing.T) {
	_, err := ref.Find(ref.Instance, "shop/web#0", "acme", instances)
	want := "\"shop/web#0\" matches 2 instances; use a longer name:\n  acme/shop.prod.web.v1#0\n  acme/shop.test.web.v1#0"
	if err == nil || err.Error() != want {
		t.Errorf("unexpected error: %v", err)
	}
	_, err = ref.Find(ref.Instance, "shop/wbe#1", "acme", instances)
	if err == nil || !strings.Contains(err.Error(), "did you mean shop/web#1?") || !errors.Is(err, api.ErrNotFound) {
		t.Errorf("error %v, want not found with a suggestion", err)
	}
	_, err = ref.Find(ref.App, "shop", "acme", nil)
	if err == nil || !strings.Contains(err.Error(), "there are no applications") {
		t.Errorf("error %v, want that there are no applications", err)
	}
}

func TestWholeReferencesNeedNoSearch(t *testing.T) {
	for _, tt := range []struct {
		kind      ref.Kind
		reference string
		own       api.Tenant
		want      string
	}{
		{ref.Instance, "shop.prod.web.v1#2", "acme", "acme/shop.prod.web.v1#2"},
		{ref.Instance, "acme/lab/shop.prod.web.v1#2", "", "acme/lab/shop.prod.web.v1#2"},
		{ref.Instance, "shop.prod.web.v1#2", "", ""},
		{ref.Instance, "shop.prod.web.v1", "acme", ""},
		{ref.Instance, "shop/web#2", "acme", ""},
		{ref.Service, "shop.prod.web.v1", "acme", "acme/shop.prod.web.v1"},
		{ref.Service, "shop.prod.web.v1#2", "acme", ""},
		{ref.App, "shop.prod", "acme", "acme/shop.prod"},
		{ref.App, "shop", "acme", ""},
		{ref.App, "sh~p.prod", "acme", ""},
	} {
		got, ok := ref.Whole(tt.kind, tt.reference, tt.own)
		if !ok {
			got = ""
		}
		if got != tt.want {
			t.Errorf("%s %q is %q, want %q", tt.kind, tt.reference, got, tt.want)
		}
	}
}

func TestSortCountsNumbers(t *testing.T) {
	ids := []api.InstanceID{"a/b.c.d.e#10", "a/b.c.d.e#2", "a/a.c.d.e#3"}
	want := []api.InstanceID{"a/a.c.d.e#3", "a/b.c.d.e#2", "a/b.c.d.e#10"}
	if slices.SortFunc(ids, ref.Compare); !slices.Equal(ids, want) {
		t.Errorf("sorted: got %v, want %v", ids, want)
	}
}
