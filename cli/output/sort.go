package output

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Sort sorts objects by the text of a column, whose name may be in lower case and have hyphens for
// spaces; numbers and durations are compared by their values. A hyphen before the name reverses the
// order.
func Sort[T any](p Printer, t Table[T], all []T, by string) error {
	name, reverse := strings.CutPrefix(by, "-")
	i := slices.IndexFunc(t.Columns, func(c Column[T]) bool { return columnName(c.Header) == columnName(name) })
	if i < 0 {
		names := make([]string, len(t.Columns))
		for k, c := range t.Columns {
			names[k] = columnName(c.Header)
		}
		return fmt.Errorf("there is no such column, want one of %s", strings.Join(names, ", "))
	}
	slices.SortStableFunc(all, func(a, b T) int {
		order := natural(t.Columns[i].Cell(p, a), t.Columns[i].Cell(p, b))
		if reverse {
			return -order
		}
		return order
	})
	return nil
}

func columnName(header string) string {
	return strings.ReplaceAll(strings.ToLower(header), " ", "-")
}

var (
	days    = regexp.MustCompile(`^(\d+)d(\d+h)?$`)
	leading = regexp.MustCompile(`^-?\d+(\.\d+)?`)
)

// natural compares durations as Duration prints them, then numbers at the beginning, then text.
func natural(a, b string) int {
	if x, ok := length(a); ok {
		if y, ok := length(b); ok {
			return cmp.Compare(x, y)
		}
	}
	x, y := leading.FindString(a), leading.FindString(b)
	if x != "" && y != "" {
		n, _ := strconv.ParseFloat(x, 64)
		m, _ := strconv.ParseFloat(y, 64)
		if n != m {
			return cmp.Compare(n, m)
		}
	}
	return cmp.Compare(a, b)
}

func length(s string) (time.Duration, bool) {
	s = strings.TrimSuffix(s, " ago")
	var whole time.Duration
	if m := days.FindStringSubmatch(s); m != nil {
		n, _ := strconv.Atoi(m[1])
		whole, s = time.Duration(n)*24*time.Hour, cmp.Or(m[2], "0s")
	}
	d, err := time.ParseDuration(s)
	return whole + d, err == nil
}
