package daemon

import "log/slog"

// Secret is a string that stays out of logs, JSON, YAML and %v. Reveal is the
// only way to it, so that a search finds where secrets go.
type Secret string

const hidden = "[redacted]"

// Reveal is the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String is "[redacted]", or "" where nothing is set.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString is for %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue is for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is for JSON, YAML and the like.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
