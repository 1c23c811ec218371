package api

import (
	"fmt"
	"strings"
)

// Selector is one condition on labels.
type Selector struct {
	Key   string `json:"key"`
	Value string `json:"value,omitempty"` // the value that the label must have, unless Any
	Any   bool   `json:"any,omitempty"`   // any value
	Not   bool   `json:"not,omitempty"`   // the condition must not be met; a missing label is fine
}

// ParseSelector reads "key=value", "key!=value", "key" or "!key", which must be valid.
func ParseSelector(text string) Selector {
	key, value, valued := strings.Cut(text, "=")
	s := Selector{Key: key, Value: value, Any: !valued}
	if valued {
		s.Key, s.Not = strings.CutSuffix(key, "!")
	} else {
		s.Key, s.Not = strings.CutPrefix(key, "!")
	}
	s.Key, s.Value = strings.TrimSpace(s.Key), strings.TrimSpace(s.Value)
	return s
}

// String returns the selector as ParseSelector reads it.
func (s Selector) String() string {
	switch {
	case s.Any && s.Not:
		return "!" + s.Key
	case s.Any:
		return s.Key
	case s.Not:
		return s.Key + "!=" + s.Value
	}
	return s.Key + "=" + s.Value
}

// ParseSelectors reads selectors that a person has typed. ErrInvalid: one of them is not a selector.
func ParseSelectors(texts []string) ([]Selector, error) {
	all := make([]Selector, len(texts))
	for i, text := range texts {
		if !patterns[labelPattern].MatchString(text) {
			return nil, fmt.Errorf("selector %q: want %s: %w", shorten(text), fixPattern[labelPattern], ErrInvalid)
		}
		all[i] = ParseSelector(text)
	}
	return all, nil
}

// Mismatch returns the index of the first selector that labels do not match; -1: they match all.
func Mismatch(selectors []Selector, labels map[string]string) int {
	for i, s := range selectors {
		v, ok := labels[s.Key]
		if (ok && (s.Any || v == s.Value)) == s.Not {
			return i
		}
	}
	return -1
}
