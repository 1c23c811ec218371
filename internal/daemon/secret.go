package daemon

import "log/slog"

// Secret is a string that is redacted in logs, JSON, YAML and fmt. Only Reveal returns it, so that
// a search finds all uses.
type Secret string

const hidden = "[redacted]"

func (s Secret) Reveal() string { return string(s) }

// String returns "[redacted]", or "" if it is empty.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

func (s Secret) GoString() string             { return s.String() }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(s.String()) }
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
