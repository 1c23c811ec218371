package output_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/cli/output"
)

func TestSortComparesValues(t *testing.T) {
	table := output.Table[string]{Columns: []output.Column[string]{
		{Header: "USES LEFT", Cell: func(_ output.Printer, s string) string { return s }},
	}}
	for _, tt := range []struct{ by, in, want string }{
		{"uses-left", "10,9,100", "9,10,100"},
		{"-USES-LEFT", "10,9,100", "100,10,9"},
		{"uses-left", "3d4h,850ms,2h5m,14s ago,2d", "850ms,14s ago,2h5m,2d,3d4h"},
		{"uses-left", "web,job,3/4 nodes,2/4 nodes", "2/4 nodes,3/4 nodes,job,web"},
	} {
		all := strings.Split(tt.in, ",")
		if err := output.Sort(output.Printer{}, table, all, tt.by); err != nil || strings.Join(all, ",") != tt.want {
			t.Errorf("sorted by %s: %v (%v), want %s", tt.by, all, err, tt.want)
		}
	}
	all := []string{"b", "a"}
	if err := output.Sort(output.Printer{}, table, all, "age"); err == nil || !strings.Contains(err.Error(), "uses-left") || !slices.Equal(all, []string{"b", "a"}) {
		t.Errorf("sorted by a column that does not exist: %v, want an error with the columns", err)
	}
}
