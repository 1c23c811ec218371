package sim

import (
	"slices"
	"testing"
)

// What is looked for is found wherever it hangs, and its path says where.
func TestMentionsFindsWhatHangsOnACore(t *testing.T) {
	type leaf struct {
		id    string
		bytes []byte
	}
	type branch struct {
		leaves map[string]*leaf
		any    any
		self   *branch
	}
	core := &struct {
		count int
		left  branch
		right [2]branch
	}{
		left:  branch{leaves: map[string]*leaf{"a#1": {id: "a"}}},
		right: [2]branch{{any: leaf{id: "b#2", bytes: []byte("c#3")}}, {}},
	}
	core.right[1].self = &core.right[1]
	want := []string{"left.leaves mentions a#1", "right.any.id mentions b#2"}
	if got := mentions(core); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
