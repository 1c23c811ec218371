package sim

import (
	"slices"
	"testing"
)

// A reference is found anywhere in a core, with its path.
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
		t.Errorf("mentions() = %q, want %q", got, want)
	}
}
