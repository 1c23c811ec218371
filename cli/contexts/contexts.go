// Package contexts keeps where the terminal signs in: named contexts in one
// file, each with a root's address, the CA that is pinned there, and the session
// of whoever signed in. Passwords are never kept. The file is of mode 0600 and
// changes under a lock, because a refresh token counts once: two commands at
// the same time must not spend the same one.
//
//	file := contexts.Open(contexts.DefaultPath(os.Getenv, program))
//	c, err := contexts.Choose(all, contexts.Wish{Context: "lab"}, os.Getenv)
package contexts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/yaml"
)

// Context is one place to sign in.
type Context struct {
	URL    string     `json:"url"`
	CA     string     `json:"ca,omitempty"`     // PEM of the root's certificate; empty: the machine's own roots
	Tenant api.Tenant `json:"tenant,omitempty"` // whose objects commands are about, where they name none

	User    string    `json:"user,omitempty"`
	Access  string    `json:"access,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // of Access
	Refresh string    `json:"refresh,omitempty"`
}

// SignedIn reports whether there is a session.
func (c Context) SignedIn() bool { return c.Refresh != "" }

// SetSession keeps a session, or forgets it if it is zero.
func (c *Context) SetSession(s api.Session) {
	c.Access, c.Expires, c.Refresh = s.Access, s.Expires, s.Refresh
	if s.User != "" {
		c.User = s.User
	}
}

// All is the whole file.
type All struct {
	Current  string             `json:"current,omitempty"`
	Contexts map[string]Context `json:"contexts"`
}

// Names are the contexts' names in alphabetical order.
func (a All) Names() []string { return slices.Sorted(maps.Keys(a.Contexts)) }

// Get is a context by its name (ErrNotFound, with those that there are).
func (a All) Get(name string) (Context, error) {
	c, ok := a.Contexts[name]
	switch {
	case ok:
		return c, nil
	case len(a.Contexts) == 0:
		return c, fmt.Errorf("context %q: there are none yet; make one with treeline login URL: %w", name, api.ErrNotFound)
	}
	return c, fmt.Errorf("context %q: there are %s: %w", name, strings.Join(a.Names(), ", "), api.ErrNotFound)
}

// DefaultPath returns the path of the contexts' file for the program at the given
// path. A program in bin/ of a checkout where scripts/up has started an installation
// uses that installation's file, .treeline/config.yaml of the checkout, so that the
// installations of several checkouts do not share contexts. Every other program uses
// $XDG_CONFIG_HOME/treeline/config.yaml, or ~/.config/treeline/config.yaml.
func DefaultPath(env func(string) string, program string) string {
	if bin := filepath.Dir(program); filepath.Base(bin) == "bin" {
		path := filepath.Join(filepath.Dir(bin), ".treeline", "config.yaml")
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	dir := env("XDG_CONFIG_HOME")
	if dir == "" {
		dir = filepath.Join(env("HOME"), ".config")
	}
	return filepath.Join(dir, "treeline", "config.yaml")
}

// File is the file of contexts.
type File struct{ path string }

// Open is the file at path, which need not exist.
func Open(path string) *File { return &File{path: path} }

// Path is where it is.
func (f *File) Path() string { return f.path }

// Load reads the file; one that is not there is empty. One that others can read
// is refused (ErrForbidden), for it holds sessions.
func (f *File) Load() (All, error) {
	all := All{Contexts: map[string]Context{}}
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		return all, fmt.Errorf("%s has mode %o and holds sessions; run chmod 600 %s: %w", f.path, info.Mode().Perm(), f.path, api.ErrForbidden)
	}
	text, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrPermission) {
		return all, fmt.Errorf("read the contexts: %w: run this as the user who made the file, or name another one with --config: %w", err, api.ErrForbidden)
	}
	if err != nil {
		return all, fmt.Errorf("read the contexts: %w", err)
	}
	doc, err := yaml.ToJSON(text)
	if err != nil {
		return all, fmt.Errorf("read %s: %w", f.path, err)
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&all); err != nil {
		return all, fmt.Errorf("%s holds no contexts (%v); mend it, or move it away and sign in anew with treeline login: %w", f.path, err, api.ErrInvalid)
	}
	if all.Contexts == nil {
		all.Contexts = map[string]Context{}
	}
	return all, nil
}

// Update reads the file, lets fn change it, and writes it, while no other
// command does. What fn fails with is returned and nothing is written.
func (f *File) Update(fn func(*All) error) error {
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the contexts: %w", err)
	}
	lock, err := os.OpenFile(f.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the contexts: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock the contexts: %w", err)
	}
	all, err := f.Load()
	if err != nil {
		return err
	}
	if err := fn(&all); err != nil {
		return err
	}
	return f.write(all)
}

// write replaces the file whole: a reader sees the old one or the new one.
func (f *File) write(all All) error {
	doc, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode the contexts: %w", err)
	}
	text, err := yaml.FromJSON(doc)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(f.path), ".config-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write the contexts: %w", err)
	}
	defer os.Remove(tmp.Name()) // of no effect once it is renamed
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), f.path)
	}
	if err != nil {
		return fmt.Errorf("write the contexts: %w", err)
	}
	return nil
}
