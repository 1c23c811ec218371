package httpapi

import (
	"encoding/base64"
	"fmt"
	"sort"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Bounds of a page.
const (
	defaultLimit = 500
	maxLimit     = 5000
)

// page returns one page of items, which are sorted by key. A cursor is the last key of
// the page before, so that changes between two pages neither repeat nor skip the others.
func page[T any](items []T, key func(T) string, limit int, cursor string) (api.Page[T], error) {
	after, err := readCursor(cursor)
	if err != nil {
		return api.Page[T]{}, err
	}
	from := 0
	if cursor != "" {
		from = sort.Search(len(items), func(i int) bool { return key(items[i]) > after })
	}
	if limit == 0 {
		limit = defaultLimit
	}
	to := min(from+limit, len(items))
	p := api.Page[T]{Items: items[from:to]}
	if len(p.Items) == 0 {
		p.Items = []T{}
	}
	if to < len(items) {
		p.Next = base64.RawURLEncoding.EncodeToString([]byte("k" + key(items[to-1])))
	}
	return p, nil
}

func readCursor(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	key, ok := strings.CutPrefix(string(b), "k")
	if err != nil || !ok {
		return "", fmt.Errorf("cursor %q is none of ours: take it from the answer's next: %w", s, api.ErrInvalid)
	}
	return key, nil
}
