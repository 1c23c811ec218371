package api

import (
	"path"
	"strings"
	"time"
)

// File is a file that each instance of a service has, besides those of its image. Its text is
// Content, or a value of a config or secret of the service's tenant.
type File struct {
	Path     string   `json:"path"`
	Mode     string   `json:"mode,omitempty"` // octal digits; see Permissions
	Content  string   `json:"content,omitempty"`
	Config   string   `json:"config,omitempty"`   // "NAME.KEY", or "NAME" of a config with one key
	Secret   string   `json:"secret,omitempty"`   // the same of a secret
	Template bool     `json:"template,omitempty"` // TemplateVariables are replaced
	OnChange OnChange `json:"on_change,omitempty"`
}

// OnChange is what happens to the instances of a service when a config or secret of a file changes.
// The file is rewritten in any case.
type OnChange string

// The values of OnChange besides signals; empty means none.
const (
	ChangeIgnored  OnChange = "none"
	ChangeRestarts OnChange = "restart" // the instances are replaced one at a time, as after a new SLA

	changeSignals = "signal:"
)

// Signals are the signals that OnChange may name.
var Signals = []string{"SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT", "SIGTERM", "SIGWINCH"}

// Signal returns the signal to send to the instance's first process, or "".
func (o OnChange) Signal() string {
	s, _ := strings.CutPrefix(string(o), changeSignals)
	if s == string(o) {
		return ""
	}
	return s
}

func onChanges() []string {
	out := []string{"", string(ChangeIgnored), string(ChangeRestarts)}
	for _, s := range Signals {
		out = append(out, changeSignals+s)
	}
	return out
}

// Source returns the config or secret that the file's text comes from, and the key in it. The kind
// is empty if the SLA contains the text. The key is empty if the object has only one.
func (f File) Source() (kind ValueKind, name, key string) {
	switch {
	case f.Secret != "":
		kind = KindSecret
		name, key, _ = strings.Cut(f.Secret, ".")
	case f.Config != "":
		kind = KindConfig
		name, key, _ = strings.Cut(f.Config, ".")
	}
	return kind, name, key
}

// Permissions returns the file's mode: 0400 for a secret and 0444 for another file, unless the SLA
// has a mode.
func (f File) Permissions() uint32 {
	if f.Mode == "" {
		if f.Secret != "" {
			return 0o400
		}
		return 0o444
	}
	mode := uint32(0)
	for _, d := range f.Mode {
		mode = mode<<3 | uint32(d-'0')&7
	}
	return mode
}

// TemplateVariables returns the names of the variables in a file with template, as they are
// written there, each followed by its value for an instance.
func TemplateVariables(id InstanceID) []string {
	part := func(i int) string {
		if p := strings.Split(id.Service().Name(), "."); i < len(p) {
			return p[i]
		}
		return ""
	}
	return []string{
		"{{instance.number}}", afterLast(string(id), '#'),
		"{{instance.name}}", id.Name(),
		"{{service.name}}", part(2),
		"{{service.namespace}}", part(3),
		"{{application.name}}", part(0),
		"{{application.namespace}}", part(1),
		"{{tenant}}", string(id.Tenant()),
	}
}

// FillTemplate replaces TemplateVariables in a text, and nothing else.
func FillTemplate(text string, id InstanceID) string {
	return strings.NewReplacer(TemplateVariables(id)...).Replace(text)
}

// ValueKind is config or secret.
type ValueKind string

// The kinds of Values.
const (
	KindConfig ValueKind = "config"
	KindSecret ValueKind = "secret"
)

// ValuesID names a config or a secret: "<tenant>/<name>".
type ValuesID string

// Values returns the id of a config or secret of the tenant.
func (t Tenant) Values(name string) ValuesID { return ValuesID(string(t) + "/" + name) }

// Tenant returns the tenant that owns the object.
func (v ValuesID) Tenant() Tenant { return Tenant(beforeLast(string(v), '/')) }

// Name returns the object's name without its tenant.
func (v ValuesID) Name() string { return afterLast(string(v), '/') }

// TypeRegistry is the type of a secret with the user and password of an image registry, under the
// keys UsernameKey and PasswordKey. Nodes use it for the images of its tenant's services only.
const (
	TypeRegistry = "registry"
	UsernameKey  = "username"
	PasswordKey  = "password"
)

// Limits of configs and secrets.
const (
	MaxValueKeys  = 64        // keys of an object
	MaxValueBytes = 128 << 10 // bytes of an object's keys and values
	MaxValueKey   = 128       // bytes of a key
	MaxFiles      = 32        // files of a service
	MaxFileBytes  = 64 << 10  // bytes of one `content`
	MaxAllContent = 128 << 10 // bytes of all `content` of a service
)

// Values is a config or a secret in the API: values under keys, which files of the tenant's services
// name. Data is never set for a secret.
type Values struct {
	ID       ValuesID          `json:"id"`
	Tenant   Tenant            `json:"tenant"`
	Kind     ValueKind         `json:"kind"`
	Type     string            `json:"type,omitempty"`     // TypeRegistry, or empty
	Registry string            `json:"registry,omitempty"` // of TypeRegistry: its host, as in image references
	Version  uint64            `json:"version"`            // counts its changes, from 1
	Digest   string            `json:"digest"`             // of the version; tells nothing about its values
	Keys     []ValueKey        `json:"keys"`               // sorted
	Data     map[string][]byte `json:"data,omitempty"`     // of a config; base64 in JSON
	Services []ServiceID       `json:"services,omitempty"` // that name it, sorted
	Created  time.Time         `json:"created"`
	Changed  time.Time         `json:"changed"`
	By       string            `json:"by,omitempty"` // the user who changed it last
	Revision Revision          `json:"revision"`
}

// ValueKey is one key of a config or secret.
type ValueKey struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"` // of its value
}

// NewValues is the request to create or to replace a config or a secret.
type NewValues struct {
	Name     string            `json:"name,omitempty"` // of a new one
	Type     string            `json:"type,omitempty"`
	Registry string            `json:"registry,omitempty"`
	Data     map[string][]byte `json:"data"` // base64 in JSON
}

// ValidValuesName reports whether s may name a config or a secret: a DNS label in lower case.
func ValidValuesName(s string) bool { return machineRE.MatchString(s) }

// ValidValueKey reports whether s may be a key of a config or secret: a file name of letters,
// digits and . _ -, with at most MaxValueKey bytes.
func ValidValueKey(s string) bool {
	return patterns[valueKeyPattern].MatchString(s) && s != "." && s != ".."
}

// pathFault returns why a file cannot have a path, and how to fix it, or "".
func pathFault(p string) (wrong, fix string) {
	switch {
	case p == "" || p[0] != '/':
		return "is not an absolute path", "begin it with /"
	case p == "/" || path.Clean(p) != p:
		return "is not the path of a file without . and ..", "write " + shorten(path.Clean(p)) + " or the path that you mean"
	}
	for _, c := range p {
		if c < ' ' || c == 0x7f {
			return "contains a control character", "remove it"
		}
	}
	for _, part := range strings.Split(p, "/") {
		if len(part) > 255 {
			return "has a name of more than 255 bytes", "shorten it"
		}
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", FilesDir} {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			return "is in " + dir + ", which belongs to the system", "choose another directory"
		}
	}
	for _, own := range []string{"/etc/hosts", "/etc/resolv.conf", "/etc/hostname"} {
		if p == own {
			return "is written by the node", "choose another path"
		}
	}
	if rest, ok := underRun(p); ok && !strings.Contains(rest, "/") {
		return "is directly in " + strings.TrimSuffix(p, "/"+rest) + ", where only directories can be mounted", "put it into a directory there, such as /run/secrets/" + shorten(rest)
	}
	return "", ""
}

// FilesDir is the directory in an instance that has the contents of its files. The paths in the SLA
// are symbolic links to it, so that all files change at once.
const FilesDir = "/run/treeline"

// underRun returns the path below /run, or /var/run, which most images link to /run.
func underRun(p string) (rest string, ok bool) {
	if rest, ok = strings.CutPrefix(p, "/run/"); ok {
		return rest, true
	}
	return strings.CutPrefix(p, "/var/run/")
}

// fileMB returns the memory that the files of an instance need on its node beside its own, in MiB, rounded
// up. The value of a config or secret counts as the largest one, and everything twice: two versions exist
// during a change.
func (m Microservice) fileMB() int64 {
	bytes := 0
	for _, f := range m.Files {
		if bytes += len(f.Content); f.Config != "" || f.Secret != "" {
			bytes += MaxValueBytes
		}
	}
	return (2*int64(bytes) + 1<<20 - 1) >> 20
}
