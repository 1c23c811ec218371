package guest

import (
	"fmt"
	"path"
	"slices"
)

// Entry is a file or directory of a cpio archive.
type Entry struct {
	Name string
	Mode uint32 // of stat(2), with the type
	Data []byte
}

// Archive returns an archive in the format of Linux's initial file systems ("newc").
func Archive(all []Entry) []byte {
	var out []byte
	pad := func() {
		for len(out)%4 != 0 {
			out = append(out, 0)
		}
	}
	for i, e := range append(slices.Clone(all), Entry{Name: "TRAILER!!!"}) {
		name := path.Clean(e.Name)
		out = append(out, "070701"...)
		for _, v := range []int{i + 1, int(e.Mode), 0, 0, 1, 0, len(e.Data), 0, 0, 0, 0, len(name) + 1, 0} {
			out = fmt.Appendf(out, "%08x", v)
		}
		out = append(append(out, name...), 0)
		pad()
		out = append(out, e.Data...)
		pad()
	}
	return out
}
