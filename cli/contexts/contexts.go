// Package contexts stores named contexts in a file: the address of a root, its pinned CA, and the
// session of a user, but no password. The file has mode 0600. Commands change it under a lock,
// because a refresh token is valid for one use and concurrent commands must not use the same one.
//
//	file := contexts.Open(contexts.DefaultPath(os.Getenv, program))
//	c, err := contexts.Choose(all, contexts.Flags{Context: "lab"}, os.Getenv)
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
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/internal/yaml"
)

// Context is the address of a root, and a session there; or that of a cluster, and its operator's token.
type Context struct {
	URL string `json:"url"`
	// Replicas are the URLs of the root's replicas, which the root told when it answered with a session.
	Replicas []string `json:"replicas,omitempty"`

	CA     string     `json:"ca,omitempty"`     // PEM of the root's CA; empty: the system's CAs
	Tenant api.Tenant `json:"tenant,omitempty"` // default of --tenant

	// Cluster is set if URL is the cluster's own port. Access is then a token without an end.
	Cluster api.ClusterID `json:"cluster,omitempty"`

	User    string    `json:"user,omitempty"`
	Access  string    `json:"access,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // of Access
	Refresh string    `json:"refresh,omitempty"`
}

func (c Context) SignedIn() bool { return c.Refresh != "" || c.Cluster != "" && c.Access != "" }

// SetSession sets the session; a zero session signs out.
func (c *Context) SetSession(s api.Session) {
	c.Access, c.Expires, c.Refresh = s.Access, s.Expires, s.Refresh
	if s.User != "" {
		c.User, c.Replicas = s.User, replicas.Clean(s.Replicas)
	}
}

type All struct {
	Current  string             `json:"current,omitempty"`
	Contexts map[string]Context `json:"contexts"`
}

// Names returns the names of the contexts in alphabetical order.
func (a All) Names() []string { return slices.Sorted(maps.Keys(a.Contexts)) }

// Get returns a context. ErrNotFound: it does not exist; the message lists those that do.
func (a All) Get(name string) (Context, error) {
	c, ok := a.Contexts[name]
	switch {
	case ok:
		return c, nil
	case len(a.Contexts) == 0:
		return c, fmt.Errorf("context %q: no contexts exist; create one with treeline login URL: %w", name, api.ErrNotFound)
	}
	return c, fmt.Errorf("context %q: existing contexts are %s: %w", name, strings.Join(a.Names(), ", "), api.ErrNotFound)
}

// DefaultPath returns the path of the contexts file for the program at the given path. For a
// program in bin/ of a checkout where scripts/up has started an installation, it is
// .treeline/config.yaml of the checkout. Otherwise it is $XDG_CONFIG_HOME/treeline/config.yaml, by
// default ~/.config/treeline/config.yaml; on Windows %AppData%\treeline\config.yaml.
func DefaultPath(env func(string) string, program string) string {
	if bin := filepath.Dir(program); filepath.Base(bin) == "bin" {
		path := filepath.Join(filepath.Dir(bin), ".treeline", "config.yaml")
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	dir := env("XDG_CONFIG_HOME")
	switch {
	case dir != "":
	case runtime.GOOS == "windows":
		dir = env("AppData")
	default:
		dir = filepath.Join(env("HOME"), ".config")
	}
	return filepath.Join(dir, "treeline", "config.yaml")
}

type File struct{ path string }

// Open returns the file at path, which need not exist.
func Open(path string) *File { return &File{path: path} }

// Load reads the file. A file that does not exist counts as empty. ErrForbidden: other users can
// read the file, or this user cannot; ErrInvalid: it is not a contexts file.
func (f *File) Load() (All, error) {
	all := All{Contexts: map[string]Context{}}
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err == nil {
		if err := checkMode(f.path, info); err != nil {
			return all, err
		}
	}
	text, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrPermission) {
		return all, fmt.Errorf("read contexts: %w: run this as the owner of the file, or use another file with --config: %w", err, api.ErrForbidden)
	}
	if err != nil {
		return all, fmt.Errorf("read contexts: %w", err)
	}
	doc, err := yaml.ToJSON(text)
	if err != nil {
		return all, fmt.Errorf("read %s: %w", f.path, err)
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&all); err != nil && strings.Contains(err.Error(), "unknown field") {
		// Not ignored: Update would delete what a newer treeline needs.
		return all, fmt.Errorf("%s is not a contexts file of this version (%v): if a newer treeline wrote it, use that one, or another file with --config; else correct the key: %w", f.path, err, api.ErrInvalid)
	} else if err != nil {
		return all, fmt.Errorf("%s is not a contexts file (%v); repair it, or move it away and sign in again with treeline login: %w", f.path, err, api.ErrInvalid)
	}
	if all.Contexts == nil {
		all.Contexts = map[string]Context{}
	}
	return all, nil
}

// Update reads the file, calls fn to change the contexts, and writes the file, all under the lock.
// If fn returns an error, Update returns it and writes nothing.
func (f *File) Update(fn func(*All) error) error {
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of the contexts: %w", err)
	}
	locked, err := os.OpenFile(f.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		defer locked.Close()
		err = lock(locked)
	}
	if err != nil {
		return fmt.Errorf("lock contexts: %w", err)
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

func (f *File) write(all All) error {
	doc, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode contexts: %w", err)
	}
	text, err := yaml.FromJSON(doc)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(f.path), ".config-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	defer os.Remove(tmp.Name()) // fails after the rename
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), f.path)
	}
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	return nil
}
