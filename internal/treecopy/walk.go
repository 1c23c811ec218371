package treecopy

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
)

// walk calls visit for a directory and for everything below it, a directory before what is in it. visit reports whether
// to leave out what is below. Unlike fs.WalkDir, it accepts names that are not UTF-8. With gone, it leaves out what has disappeared.
func walk(root *os.Root, name string, gone bool, visit func(name string) (skip bool, err error)) error {
	skip, err := visit(name)
	var names []string
	if err == nil && !skip {
		names, err = readDir(root, name)
	}
	if gone && name != "." && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := walk(root, path.Join(name, n), gone, visit); err != nil {
			return err
		}
	}
	return nil
}

// readDir returns the names in a directory, nil if it is none.
func readDir(root *os.Root, name string) ([]string, error) {
	info, err := root.Lstat(name)
	if err != nil || !info.IsDir() {
		return nil, err
	}
	d, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}
