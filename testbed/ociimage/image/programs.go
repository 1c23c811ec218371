package image

import (
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// libraryDirs are where the dynamic linker of Debian finds libraries.
var libraryDirs = []string{"/lib/*-linux-gnu", "/usr/lib/*-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"}

// programs returns the files of dynamically linked programs of this machine: the programs, in the root
// directory, their libraries and their dynamic linker.
func programs(paths []string) ([]file, error) {
	from := map[string]string{} // path in the image → path on this machine
	var add func(to, path string) error
	add = func(to, path string) error {
		if from[to] != "" {
			return nil
		}
		from[to] = path
		f, err := elf.Open(path)
		if err != nil {
			return fmt.Errorf("read program %s: %w", path, err)
		}
		defer f.Close()
		for _, p := range f.Progs {
			if p.Type != elf.PT_INTERP {
				continue
			}
			name := make([]byte, p.Filesz-1) // without the zero byte
			if _, err := p.ReadAt(name, 0); err != nil {
				return fmt.Errorf("read program %s: %w", path, err)
			}
			from[string(name)] = string(name)
		}
		libraries, err := f.ImportedLibraries()
		if err != nil {
			return fmt.Errorf("read program %s: %w", path, err)
		}
		for _, l := range libraries {
			at, err := library(l)
			if err != nil {
				return fmt.Errorf("program %s: %w", path, err)
			}
			if err := add(at, at); err != nil {
				return err
			}
		}
		return nil
	}
	for _, p := range paths {
		if err := add("/"+filepath.Base(p), p); err != nil {
			return nil, err
		}
	}
	var out []file
	for _, to := range slices.Sorted(maps.Keys(from)) {
		data, err := os.ReadFile(from[to])
		if err != nil {
			return nil, err
		}
		out = append(out, file{name: to[1:], mode: 0o755, data: data})
	}
	return out, nil
}

func library(name string) (string, error) {
	for _, d := range libraryDirs {
		if found, _ := filepath.Glob(filepath.Join(d, name)); len(found) > 0 {
			return found[0], nil
		}
	}
	return "", fmt.Errorf("library %s is in none of %q", name, libraryDirs)
}
