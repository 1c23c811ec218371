package treecopy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// held counts the bytes of names that a side has in memory. A tenant decides how many there are, and how long.
type held int

// maxHeld is a variable for tests.
var maxHeld held = 128 << 20

func (h *held) add(name string) error {
	if *h += held(len(name)); *h > maxHeld {
		return fmt.Errorf("the names of its files have more than %d MiB: %w", maxHeld>>20, api.ErrFull)
	}
	return nil
}

// walk calls visit for a directory and for everything below it, a directory before what is in it. visit reports whether
// to leave out what is below. Unlike fs.WalkDir, it accepts names that are not UTF-8. With gone, it leaves out what has disappeared.
func walk(root *os.Root, name string, gone bool, visit func(name string) (skip bool, err error)) error {
	return new(held).walk(root, name, gone, visit)
}

func (h *held) walk(root *os.Root, name string, gone bool, visit func(name string) (skip bool, err error)) error {
	skip, err := visit(name)
	before := *h
	var names []string
	if err == nil && !skip {
		names, err = h.readDir(root, name)
	}
	if gone && name != "." && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := h.walk(root, path.Join(name, n), gone, visit); err != nil {
			return err
		}
	}
	*h = before
	return nil
}

// readDir returns the names in a directory, nil if it is none.
func (h *held) readDir(root *os.Root, name string) (names []string, err error) {
	info, err := root.Lstat(name)
	if err != nil || !info.IsDir() {
		return nil, err
	}
	d, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	for {
		part, err := d.Readdirnames(1024)
		for _, n := range part {
			if err := h.add(n); err != nil {
				return nil, err
			}
		}
		names = append(names, part...)
		switch {
		case errors.Is(err, io.EOF):
			slices.Sort(names)
			return names, nil
		case err != nil:
			return nil, err
		case len(names) > MaxEntries:
			return nil, fmt.Errorf("it has more than %d files: %w", MaxEntries, api.ErrFull)
		}
	}
}
