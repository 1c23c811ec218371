package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// ParseSLA parses an SLA in JSON and checks every field against Fields. If the document has faults,
// the error is a *Faults with all of them, which wraps ErrInvalid. A document beyond the limits is
// ErrTooLarge.
//
// The result has the units of the Go types, which may differ from those of documents. Defaults are
// filled in: an absent arch follows the platform, the virtualization "docker" is "container", a
// service that is not a process and does not opt out needs the overlay network, areas, targets
// and names of clusters and nodes are in lower case, services are "name.namespace", and empty lists are nil.
func ParseSLA(doc []byte) (SLA, error) {
	root, err := readTree(doc)
	if err != nil {
		return SLA{}, err
	}
	faults := &Faults{}
	check(faults, root)
	if len(faults.Faults) > 0 {
		return SLA{}, faults
	}
	if convert(root) {
		if doc, err = json.Marshal(root.plain()); err != nil {
			return SLA{}, fmt.Errorf("convert the units of an SLA: %w: %w", err, ErrInvalid)
		}
	}
	var sla SLA
	if err := json.Unmarshal(doc, &sla); err != nil {
		return SLA{}, fmt.Errorf("decode a checked SLA: %w: %w", err, ErrInvalid)
	}
	sla.complete()
	return sla, nil
}

func (s *SLA) complete() {
	for i := range s.Applications {
		services := s.Applications[i].Services
		known := siblings{}
		for k := range services {
			known.add(services[k].Name, services[k].Namespace)
		}
		for k := range services {
			services[k].complete()
			services[k].address(known)
		}
	}
}

func (m *Microservice) complete() {
	if m.Virtualization == "process" {
		m.Code = strings.TrimPrefix(m.Code, fileScheme) // the runtime takes paths
	}
	if m.Virtualization == "docker" {
		m.Virtualization = "container" // Oakestra's name
	}
	if m.Network == "" && m.Virtualization != "process" {
		m.Network = NetworkOverlay
	}
	if len(m.Arch) == 0 && m.Platform != "" {
		m.Arch = []string{strings.TrimPrefix(m.Platform, "linux/")}
	}
	m.VCPUs += 0 // turns -0 into 0
	m.Cmd, m.Environment, m.Arch = orNil(m.Cmd), orNil(m.Environment), orNil(m.Arch)
	m.Constraints = orNil(m.Constraints)
	m.Callers, m.Calls = orNil(m.Callers), orNil(m.Calls)
	if a := m.Addresses; a != nil {
		a.complete()
		if a.Instances = orNil(a.Instances); a.RoundRobin == "" && a.Closest == "" && a.Instances == nil {
			m.Addresses = nil // an empty object, as in Oakestra's files, requests none
		}
	}
	m.Devices, m.Connectivity, m.Volumes = orNil(m.Devices), orNil(m.Connectivity), orNil(m.Volumes)
	m.Files, m.AddedFiles = orNil(slices.Concat(m.Files, m.AddedFiles)), nil
	m.completeHealth()
	for i := range m.Volumes {
		m.Volumes[i].complete()
		m.Exclusive = m.Exclusive || m.Volumes[i].Type == VolumeCSI && !m.Volumes[i].Shared()
	}
	if m.Schedule != nil {
		m.Exclusive = true // a run must not be under way twice
	}
	if m.OneShot && m.TimeToLive > 0 && m.Replicas == nil {
		m.Completions = max(1, m.Completions) // so that applying it again runs it again
	}
	if m.Schedule != nil && m.Schedule.Lane() > 1 {
		m.Completions = max(1, m.Completions)
		all := m.Completions * m.Schedule.Lane()
		m.Replicas = &all
	} else if m.Completions > 0 {
		m.Replicas = &m.Completions
	}
	for i := range m.Constraints {
		k := &m.Constraints[i]
		if k.Type == antiAffinity {
			k.Type = ConstrainAntiAffinity
		}
		k.Allowed, k.Needs, k.Polygon, k.Labels, k.Services = orNil(k.Allowed), orNil(k.Needs), orNil(k.Polygon), orNil(k.Labels), orNil(k.Services)
		k.Area, k.Target = strings.ToLower(k.Area), strings.ToLower(k.Target)
		k.Cluster, k.Node = strings.ToLower(k.Cluster), strings.ToLower(k.Node)
	}
}

// complete derives the IPv4 address from the IPv6 address if the SLA has only the latter, and
// removes an IPv6 address of "auto" or "".
func (a *Addresses) complete() {
	at, ok := chosen6(a.RoundRobin6)
	if !ok {
		a.RoundRobin6 = ""
		return
	}
	a.RoundRobin6 = at.String()
	if a.RoundRobin == "" || a.RoundRobin == "auto" {
		a.RoundRobin = low32(at).String()
	}
}

// address replaces names of services by full names.
func (m *Microservice) address(known siblings) {
	for i := range m.Constraints {
		k := &m.Constraints[i]
		k.Service = known.full(k.Service)
		for n := range k.Services {
			k.Services[n] = known.full(k.Services[n])
		}
	}
	for i := range m.Connectivity {
		m.Connectivity[i].Target = known.full(m.Connectivity[i].Target)
	}
}

func orNil[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

// value is a JSON value with its members in the order of the document.
type value struct {
	kind    FieldType // "" is null; all numbers are NumberField
	text    string    // a string, or the literal of a number
	truth   bool
	members []member
	items   []value
}

type member struct {
	key string
	value
}

func (v *value) get(key string) *value {
	i := slices.IndexFunc(v.members, func(m member) bool { return m.key == key })
	if i < 0 {
		return &value{}
	}
	return &v.members[i].value
}

// CheckJSON returns the faults of a document that do not depend on its fields, such as a key that is given twice. Use it
// before a decoder that accepts them.
func CheckJSON(doc []byte) error {
	_, err := readTree(doc)
	return err
}

// readTree parses a document within the limits. It refuses duplicate keys, invalid UTF-8, and text
// after the end.
func readTree(doc []byte) (*value, error) {
	if len(doc) > MaxSLABytes {
		return nil, fmt.Errorf("read SLA: %d bytes, want at most %d: %w", len(doc), MaxSLABytes, ErrTooLarge)
	}
	if !utf8.Valid(doc) {
		return nil, malformed("the document is not UTF-8 text")
	}
	if !json.Valid(doc) {
		var whole json.RawMessage
		err := json.Unmarshal(doc, &whole)
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line, column := position(doc, syntax.Offset)
			return nil, malformed(fmt.Sprintf("not JSON at line %d, column %d: %v", line, column, err))
		}
		return nil, malformed(fmt.Sprintf("not JSON: %v", err))
	}
	sizes, err := measure(doc)
	if err != nil {
		return nil, err
	}
	r := &treeReader{dec: json.NewDecoder(bytes.NewReader(doc)), faults: &Faults{}, sizes: sizes}
	r.dec.UseNumber()
	root, err := r.read()
	if err != nil {
		return nil, err
	}
	if len(r.faults.Faults) > 0 {
		return nil, r.faults
	}
	return &root, nil
}

// measure returns the number of entries of each object and array of a valid document, in the
// order in which they begin. It refuses too many values or too great a depth before anything
// is allocated.
func measure(doc []byte) (sizes []int32, err error) {
	var open [MaxSLADepth]int // indices into sizes
	depth, values := 0, 1
	quoted, empty := false, false // empty: the last character was an opening bracket
	for i := 0; i < len(doc); i++ {
		c := doc[i]
		switch {
		case quoted && c == '\\':
			i++
			continue
		case c == '"':
			quoted = !quoted
		case quoted, c == ' ', c == '\t', c == '\r', c == '\n':
			continue
		}
		if empty && c != ']' && c != '}' {
			values++
			sizes[open[depth-1]]++
		}
		empty = false
		switch c {
		case '[', '{':
			if depth == MaxSLADepth {
				return nil, malformed(fmt.Sprintf("nested deeper than %d", MaxSLADepth))
			}
			open[depth], empty = len(sizes), true
			sizes = append(sizes, 0)
			depth++
		case ']', '}':
			depth--
		case ',':
			values++
			sizes[open[depth-1]]++
		}
		if values > MaxSLAValues {
			return nil, fmt.Errorf("read SLA: more than %d values: %w", MaxSLAValues, ErrTooLarge)
		}
	}
	return sizes, nil
}

type treeReader struct {
	dec    *json.Decoder
	faults *Faults
	path   []string // keys and indices of the current value
	sizes  []int32  // numbers of entries of the objects and arrays to come
}

func (r *treeReader) read() (value, error) {
	tok, err := r.dec.Token()
	if err != nil {
		return value{}, malformed("not JSON: " + err.Error())
	}
	switch t := tok.(type) {
	case string:
		return value{kind: StringField, text: t}, nil
	case json.Number:
		return value{kind: NumberField, text: string(t)}, nil
	case bool:
		return value{kind: BooleanField, truth: t}, nil
	case json.Delim:
		r.path = append(r.path, "")
		v, err := r.inside(t)
		r.path = r.path[:len(r.path)-1]
		return v, err
	}
	return value{}, nil // null
}

func (r *treeReader) inside(open json.Delim) (value, error) {
	size := int(r.sizes[0])
	r.sizes = r.sizes[1:]
	v := value{kind: ArrayField}
	var seen map[string]bool
	switch {
	case open == '{':
		v.kind, seen = ObjectField, make(map[string]bool, size)
		v.members = make([]member, 0, size)
	case size > 0:
		v.items = make([]value, 0, size)
	}
	for r.dec.More() {
		here := &r.path[len(r.path)-1]
		key := ""
		if v.kind == ObjectField {
			tok, err := r.dec.Token()
			if err != nil {
				return v, malformed("not JSON: " + err.Error())
			}
			key, _ = tok.(string)
			*here = escape(key)
			if seen[key] {
				at := "/" + strings.Join(r.path, "/")
				r.faults.add(Fault{at, shorten(key), shorten(key) + " is given twice", "keep one of them"})
			}
			seen[key] = true
		} else {
			*here = itoa(len(v.items))
		}
		item, err := r.read()
		if err != nil {
			return v, err
		}
		if v.kind == ObjectField {
			v.members = append(v.members, member{key, item})
		} else {
			v.items = append(v.items, item)
		}
	}
	_, err := r.dec.Token() // the closing bracket
	return v, err
}

func malformed(message string) *Faults {
	return &Faults{Faults: []Fault{{Message: message}}}
}

// position returns the line and column of an offset. Both count from 1.
func position(doc []byte, offset int64) (line, column int) {
	before := doc[:min(max(offset-1, 0), int64(len(doc)))]
	line = bytes.Count(before, []byte("\n")) + 1
	return line, utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
}

var escaper = strings.NewReplacer("~", "~0", "/", "~1")

// escape encodes a key for a JSON pointer.
func escape(key string) string { return escaper.Replace(shorten(key)) }

// shorten truncates text from a document for error messages.
func shorten(key string) string {
	const limit = 64
	if len(key) <= limit {
		return key
	}
	return strings.ToValidUTF8(key[:limit], "") + "…"
}
