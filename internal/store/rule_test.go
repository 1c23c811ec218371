package store_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

func put(version uint64, data string) store.Doc {
	return store.Doc{Kind: "app", Key: "k", Version: version, Data: []byte(data)}
}

func del(version uint64) store.Doc {
	return store.Doc{Kind: "app", Key: "k", Version: version}
}

func TestDecide(t *testing.T) {
	none := store.Doc{}
	other := store.Doc{Kind: "app", Key: "other", Version: 3, Data: []byte("c")}

	for name, tc := range map[string]struct {
		stored store.Doc
		docs   []store.Doc
		want   store.Verdict
	}{
		"the first version of a new key":         {none, []store.Doc{put(1, "a")}, store.Write},
		"a later version of a new key":           {none, []store.Doc{put(2, "b")}, store.Refuse},
		"the next version":                       {put(1, "a"), []store.Doc{put(2, "b")}, store.Write},
		"the same again":                         {put(2, "b"), []store.Doc{put(2, "b")}, store.Repeat},
		"the same version with other data":       {put(2, "b"), []store.Doc{put(2, "x")}, store.Refuse},
		"empty data is a document":               {put(1, ""), []store.Doc{put(1, "")}, store.Repeat},
		"a version skipped":                      {put(1, "a"), []store.Doc{put(3, "c")}, store.Refuse},
		"an older version":                       {put(3, "c"), []store.Doc{put(2, "b")}, store.Refuse},
		"a deletion":                             {put(1, "a"), []store.Doc{del(2)}, store.Write},
		"a deletion again":                       {none, []store.Doc{del(2)}, store.Repeat},
		"a deletion of what never was":           {none, []store.Doc{del(1)}, store.Repeat},
		"a deletion of another version":          {put(2, "b"), []store.Doc{del(2)}, store.Refuse},
		"the first of two changes, both written": {put(2, "b"), []store.Doc{put(1, "a"), put(2, "b")}, store.Repeat},
		"a change and a deletion, both written":  {none, []store.Doc{put(5, "e"), del(6)}, store.Repeat},
		"deleted and created again, all written": {put(1, "n"), []store.Doc{del(6), put(1, "n")}, store.Repeat},
		"a later change of another key":          {put(3, "c"), []store.Doc{put(2, "b"), other}, store.Refuse},
	} {
		t.Run(name, func(t *testing.T) {
			if got := store.Decide(tc.stored, tc.docs); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	ok := put(1, "a")
	for name, tc := range map[string]struct {
		change func(*store.Doc)
		want   error
	}{
		"a plain document":     {func(*store.Doc) {}, nil},
		"no kind":              {func(d *store.Doc) { d.Kind = "" }, api.ErrInvalid},
		"a kind in capitals":   {func(d *store.Doc) { d.Kind = "App" }, api.ErrInvalid},
		"a long kind":          {func(d *store.Doc) { d.Kind = strings.Repeat("k", 33) }, api.ErrInvalid},
		"no key":               {func(d *store.Doc) { d.Key = "" }, api.ErrInvalid},
		"the longest key":      {func(d *store.Doc) { d.Key = strings.Repeat("k", 512) }, nil},
		"a key too long":       {func(d *store.Doc) { d.Key = strings.Repeat("k", 513) }, api.ErrInvalid},
		"a NUL in the key":     {func(d *store.Doc) { d.Key = "a\x00b" }, api.ErrInvalid},
		"a key not in UTF-8":   {func(d *store.Doc) { d.Key = "a\xff" }, api.ErrInvalid},
		"version 0":            {func(d *store.Doc) { d.Version = 0 }, api.ErrInvalid},
		"a version past int64": {func(d *store.Doc) { d.Version = math.MaxInt64 + 1 }, api.ErrInvalid},
		"the largest data":     {func(d *store.Doc) { d.Data = make([]byte, store.MaxData) }, nil},
		"data too large":       {func(d *store.Doc) { d.Data = make([]byte, store.MaxData+1) }, api.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			d := ok
			tc.change(&d)
			if err := store.Validate([]store.Doc{ok, d}); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestAFullStoreIsA507(t *testing.T) {
	if status, _ := api.HTTPStatus(store.ErrFull); status != 507 {
		t.Errorf("got %d, want status 507", status)
	}
}
