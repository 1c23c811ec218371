package ca

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/treeline-edge/treeline/api"
)

// SavePair writes the pair to the file name in dir, mode 0600. The file is
// replaced as a whole, and durable when SavePair returns.
func SavePair(dir *os.Root, name string, p Pair) error {
	text, err := p.PEM()
	if err != nil {
		return err
	}
	return WriteFile(dir, name, text, 0o600)
}

// LoadPair reads what SavePair wrote. No such file is ErrNotFound; a file that
// others may read is refused (ErrInvalid), because its key is no secret.
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

// WriteFile replaces the file name in dir as a whole: a reader, and a crash,
// finds the old or the new content. The new one is durable on return.
func WriteFile(dir *os.Root, name string, data []byte, perm fs.FileMode) (err error) {
	tmp := name + ".new"
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s in %s: %w", name, dir.Name(), err)
		}
	}()
	// A file left by a crash is ours to replace; O_EXCL then keeps links out.
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
