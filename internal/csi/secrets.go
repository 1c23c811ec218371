package csi

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/yaml"
)

// AllCalls is the key in a file of secrets of those for the calls that have none of their own.
const AllCalls = "all"

// secretCalls are the calls that have secrets by the specification.
var secretCalls = []string{
	"CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "ControllerExpandVolume", "CreateSnapshot", "DeleteSnapshot",
	"NodeStageVolume", "NodePublishVolume", "NodeExpandVolume",
}

const (
	maxSecretFile = 1 << 17
	maxRemembered = 1 << 10 // parts of secrets that are redacted
	minLine       = 8       // bytes of a line of a secret that is redacted by itself
	minEcho       = 8       // bytes of a secret that an answer may not contain
	redacted      = "[secret]"
)

// ParseSecrets reads a list of files of secrets, "NAME=/path/of/its.yaml", of drivers in sockets, and returns
// the files by the drivers' names.
func ParseSecrets(list []string, sockets map[string]string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range list {
		name, path, _ := strings.Cut(text, "=")
		switch {
		case !api.ValidCSIDriver(name) || !strings.HasPrefix(path, "/"):
			return nil, fmt.Errorf("%q is not NAME=/path/of/its.yaml, with a name such as csi.example.org: %w", text, api.ErrInvalid)
		case sockets[name] == "":
			return nil, fmt.Errorf("driver %s has no socket: add %s=/path/of/its.sock to csi: %w", name, name, api.ErrInvalid)
		case out[name] != "":
			return nil, fmt.Errorf("driver %s is given twice: %w", name, api.ErrInvalid)
		}
		out[name] = path
	}
	return out, nil
}

// secrets are those of one driver. They are read from their file at each call, so that a change needs no
// restart. Their errors contain neither the path nor anything of the content.
type secrets struct {
	path string // "": there are none

	mu    sync.Mutex // guards the field below
	known []string   // what was read, with its lines and other spellings, oldest first
}

// of returns the secrets of a call.
func (s *secrets) of(method string) (map[string]string, error) {
	if s.path == "" {
		return nil, nil
	}
	all, err := readSecrets(s.path)
	if err != nil {
		return nil, err
	}
	s.remember(all)
	if !slices.Contains(secretCalls, method) {
		return nil, nil
	}
	if own, ok := all[method]; ok {
		return own, nil
	}
	return all[AllCalls], nil
}

func readSecrets(path string) (map[string]map[string]string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not hang
	if err != nil {
		var p *os.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return nil, fmt.Errorf("open the file of its secrets (key csi_secrets): %v: %w", err, api.ErrUnavailable)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("the file of its secrets (key csi_secrets) is no regular file that only its owner may read (mode 0600): %w", api.ErrUnavailable)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil || len(text) > maxSecretFile {
		return nil, fmt.Errorf("the file of its secrets (key csi_secrets) cannot be read, or has more than %d bytes: %w", maxSecretFile, api.ErrUnavailable)
	}
	doc, err := yaml.ToJSON(text)
	var all map[string]map[string]string
	if err == nil {
		err = json.Unmarshal(doc, &all)
	}
	known := func(m string) bool { return m == AllCalls || slices.Contains(secretCalls, m) }
	for m, values := range all {
		if !known(m) || len(values) > maxEntries {
			err = api.ErrInvalid
		}
	}
	if err != nil { // it may have secrets in its text
		return nil, fmt.Errorf("the file of its secrets (key csi_secrets) is not a map of %s or of calls (%s, …) to at most %d keys with strings, in which numbers are quoted: %w",
			AllCalls, secretCalls[0], maxEntries, api.ErrUnavailable)
	}
	return all, nil
}

// remember adds values to those that are redacted. Earlier ones stay: a driver may still use them.
func (s *secrets) remember(all map[string]map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, values := range all {
		for _, v := range values {
			parts := []string{v, base64.StdEncoding.EncodeToString([]byte(v)), url.QueryEscape(v), url.PathEscape(v)}
			for line := range strings.Lines(v) {
				if line = strings.TrimSpace(line); len(line) >= minLine {
					parts = append(parts, line)
				}
			}
			for _, part := range parts {
				if part != "" && !slices.Contains(s.known, part) {
					s.known = append(s.known, part)
				}
			}
		}
	}
	if more := len(s.known) - maxRemembered; more > 0 {
		s.known = slices.Delete(s.known, 0, more)
	}
}

// redact returns a text of the driver without secrets.
func (s *secrets) redact(text string) string {
	s.mu.Lock()
	known := slices.Clone(s.known)
	s.mu.Unlock()
	slices.SortFunc(known, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	var pairs []string
	for _, k := range known {
		pairs = append(pairs, k, redacted)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// echoed returns the key of a value that contains a secret, which would be stored with it.
func (s *secrets) echoed(values map[string]string) (key string, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if slices.ContainsFunc(s.known, func(v string) bool { return len(v) >= minEcho && strings.Contains(values[k], v) }) {
			return k, true
		}
	}
	return "", false
}
