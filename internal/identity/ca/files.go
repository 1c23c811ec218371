package ca

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/treeline-edge/treeline/api"
)

// SavePair writes the pair to the file name in dir, mode 0600, atomically and durably.
func SavePair(dir *os.Root, name string, p Pair) error {
	text, err := p.PEM()
	if err != nil {
		return err
	}
	return WriteFile(dir, name, text, 0o600)
}

// LoadPair reads what SavePair wrote. It fails with ErrNotFound if the file is missing, and with
// ErrInvalid if other users may access it.
func LoadPair(dir *os.Root, name string) (Pair, error) {
	info, err := dir.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Pair{}, fmt.Errorf("key pair %s in %s: %w", name, dir.Name(), api.ErrNotFound)
	}
	if err != nil {
		return Pair{}, fmt.Errorf("key pair %s in %s: %w", name, dir.Name(), err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return Pair{}, fmt.Errorf("key pair %s in %s has mode %o and others may read it; chmod 600 it if nobody did: %w",
			name, dir.Name(), mode, api.ErrInvalid)
	}
	text, err := dir.ReadFile(name)
	if err != nil {
		return Pair{}, fmt.Errorf("key pair %s in %s: %w", name, dir.Name(), err)
	}
	p, err := ParsePair(text)
	if err != nil {
		return Pair{}, fmt.Errorf("key pair %s in %s: %w", name, dir.Name(), err)
	}
	return p, nil
}

// WriteFile replaces the file name in dir atomically and durably: after a crash, and for readers,
// it has either the old or the new content.
func WriteFile(dir *os.Root, name string, data []byte, perm fs.FileMode) (err error) {
	tmp := name + ".new"
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s in %s: %w", name, dir.Name(), err)
		}
	}()
	// A crash may have left the file. O_EXCL refuses a link in its place.
	if err := dir.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := dir.Rename(tmp, name); err != nil {
		return err
	}
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
