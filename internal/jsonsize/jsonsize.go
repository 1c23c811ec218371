// Package jsonsize bounds the memory for decoding JSON from another tier: an object of three bytes,
// "{},", may be decoded to a struct of hundreds of bytes.
//
//	text, err := limit.Read(r.Body)
//	err = json.Unmarshal(text, &report)
package jsonsize

import (
	"bytes"
	"fmt"
	"io"

	"github.com/treeline-edge/treeline/api"
)

// Limit bounds a JSON text. Objects and Values are not limited if they are 0.
type Limit struct {
	Bytes   int64
	Objects int
	Values  int // objects, arrays, members and elements
}

// Read returns all of r. It fails with api.ErrTooLarge beyond the limit, and reads at most Bytes+1
// bytes.
func (l Limit) Read(r io.Reader) ([]byte, error) {
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(r, l.Bytes+1)); err != nil {
		return nil, err
	}
	return b.Bytes(), l.Check(b.Bytes())
}

// Check returns api.ErrTooLarge if the text is beyond the limit. It does not report
// whether the text is valid.
func (l Limit) Check(text []byte) error {
	if int64(len(text)) > l.Bytes {
		return fmt.Errorf("JSON of more than %d bytes: %w", l.Bytes, api.ErrTooLarge)
	}
	objects, values := Count(text)
	switch {
	case l.Objects > 0 && objects > l.Objects:
		return fmt.Errorf("JSON of %d objects, want at most %d: %w", objects, l.Objects, api.ErrTooLarge)
	case l.Values > 0 && values > l.Values:
		return fmt.Errorf("JSON of %d values, want at most %d: %w", values, l.Values, api.ErrTooLarge)
	}
	return nil
}

// Count returns the number of objects and an upper bound of the number of values in a text. It
// counts opening brackets and commas outside of strings.
func Count(text []byte) (objects, values int) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			objects++
			values++
		case c == '[', c == ',':
			values++
		}
	}
	return objects, values
}
