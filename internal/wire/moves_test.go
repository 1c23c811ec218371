package wire

import (
	"testing"
	"time"
)

func TestMergeMoves(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(minutes ...int) (out []time.Time) {
		for _, m := range minutes {
			out = append(out, now.Add(-time.Duration(m)*time.Minute))
		}
		return out
	}
	for name, tt := range map[string]struct{ a, b, want []time.Time }{
		"none":            {nil, nil, nil},
		"both":            {ago(30, 10), ago(20), ago(30, 20, 10)},
		"the same twice":  {ago(30, 10), ago(10, 30), ago(30, 10)},
		"an hour ago":     {ago(60, 59), ago(600), ago(59)},
		"a clock ahead":   {ago(-4), ago(3), ago(3, -4)},
		"from the future": {ago(-6, -6000), ago(3), ago(3)},
	} {
		got := MergeMoves(tt.a, tt.b, now)
		same := len(got) == len(tt.want)
		for i := range got {
			same = same && got[i].Equal(tt.want[i])
		}
		if !same {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	var many []time.Time
	for i := range 10_000 {
		many = append(many, now.Add(-time.Duration(i)*time.Millisecond))
	}
	if got := MergeMoves(many, nil, now); len(got) != MaxMoves || !got[MaxMoves-1].Equal(now) {
		t.Errorf("of many, %d are remembered, the newest %s", len(got), got[len(got)-1])
	}
}
