package yaml

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// FromJSON returns a JSON document as YAML for people, with its members in order. ToJSON reverses
// it. It fails with ErrInvalid if doc is not JSON. It does not use the library's writer, which
// loses line ends.
func FromJSON(doc []byte) ([]byte, error) {
	if !json.Valid(doc) {
		return nil, fmt.Errorf("write YAML: the document is not JSON: %w", api.ErrInvalid)
	}
	p := printer{dec: json.NewDecoder(bytes.NewReader(doc))}
	p.dec.UseNumber()
	p.value("", "")
	return p.out.Bytes(), nil
}

type printer struct {
	dec *json.Decoder
	out bytes.Buffer
}

// value prints the next value, after lead: "", ":" or "- ". indent precedes each line of a
// collection, except the first if lead is "- ".
func (p *printer) value(lead, indent string) {
	tok, _ := p.dec.Token() // no error: FromJSON has checked the document
	delim, ok := tok.(json.Delim)
	if !ok {
		p.out.WriteString(gap(lead) + scalar(tok) + "\n")
		return
	}
	if !p.dec.More() {
		end, _ := p.dec.Token()
		p.out.WriteString(gap(lead) + delim.String() + end.(json.Delim).String() + "\n")
		return
	}
	inline := lead == "- "
	if lead == ":" {
		p.out.WriteByte('\n')
	}
	for first := true; p.dec.More(); first = false {
		if !first || !inline {
			p.out.WriteString(indent)
		}
		if delim == '[' {
			p.out.WriteString("- ")
			p.value("- ", indent+"  ")
			continue
		}
		key, _ := p.dec.Token()
		p.out.WriteString(scalar(key) + ":")
		p.value(":", indent+"  ")
	}
	_, _ = p.dec.Token()
}

func gap(lead string) string {
	if lead == ":" {
		return " "
	}
	return ""
}

// bare matches text that needs no quotes.
var (
	bare     = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./+-]*(?:[:@=][A-Za-z0-9_./+-]+)*$`)
	reserved = map[string]bool{"true": true, "false": true, "null": true, "yes": true, "no": true, "on": true, "off": true, "y": true, "n": true}
)

func scalar(tok json.Token) string {
	s, ok := tok.(string)
	if ok && bare.MatchString(s) && !reserved[strings.ToLower(s)] {
		return s
	}
	// JSON strings are valid YAML, except for the characters in escapes. HTML escapes are off for
	// readability.
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(tok) // a string, a number, a boolean or null
	return escapes(strings.TrimSuffix(b.String(), "\n"))
}

// escapes escapes the characters that JSON strings may have and YAML strings may not.
func escapes(quoted string) string {
	var b strings.Builder
	for _, r := range quoted {
		if r >= 0x7f && r <= 0x9f || r == 0xfeff || r == 0xfffe || r == 0xffff {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
