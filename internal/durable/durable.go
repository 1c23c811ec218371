// Package durable replaces files so that a crash or a power cut leaves the old or the new content.
package durable

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// WriteJSON replaces the file name in dir, with the permissions 0600, by the JSON of v. It returns when the file
// and its name are on disk. Only one call for a file may run at a time.
func WriteJSON(dir, name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return SyncDir(dir)
}

// SyncDir returns when the names in a directory are on disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
