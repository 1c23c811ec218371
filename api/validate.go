package api

import (
	"cmp"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// check validates a document against Fields and collects its faults.
func check(faults *Faults, root *value) {
	c := checker{faults}
	if root.get("microservices").kind == ArrayField && root.get("applications").kind == "" { // as for Oakestra's dashboard
		c.fault("/microservices", "name the application that gets them, treeline apply --application NAME.NAMESPACE or ?application=NAME.NAMESPACE, or write them in /applications/*",
			"the microservices belong to no application")
		return
	}
	c.value("", lookup[""], root)
}

// lookup has the fields by pointer, below the names of the fields directly below a pointer.
var (
	lookup   = map[string]*Field{}
	below    = map[string][]string{}
	patterns = map[string]*regexp.Regexp{}
)

func init() {
	for _, p := range []string{valueKeyPattern, labelKeyPattern} {
		patterns[p] = regexp.MustCompile(p)
	}
	for i := range Fields {
		f := &Fields[i]
		f.Status = cmp.Or(f.Status, Enforced)
		lookup[f.Pointer] = f
		for _, p := range []string{f.Pattern, f.Text} {
			if p != "" && patterns[p] == nil {
				patterns[p] = regexp.MustCompile(p)
			}
		}
		if f.Pointer != "" {
			parent := beforeLast(f.Pointer, '/')
			below[parent] = append(below[parent], f.Name())
		}
	}
}

type checker struct{ *Faults }

// fault adds a fault of the value at a pointer. The fault's field is the last part of the pointer
// that is not an index.
func (c checker) fault(at, fix, format string, args ...any) {
	if c.full() {
		c.More++
		return
	}
	field := afterLast(at, '/')
	if _, err := strconv.Atoi(field); err == nil {
		field = afterLast(beforeLast(at, '/'), '/')
	}
	c.add(Fault{Pointer: at, Field: field, Message: fmt.Sprintf(format, args...), Fix: fix})
}

// value checks one value of a field, and the values in it.
func (c checker) value(at string, f *Field, v *value) {
	name := f.Name()
	if name == "*" {
		name = afterLast(beforeLast(f.Pointer, '/'), '/')
	}
	if f.Pointer == servicePath+"/added_files" && idle(v) {
		return // as in Oakestra's files
	}
	if f.Status == Refused {
		if !idle(v) {
			c.fault(at, "leave "+name+" out", "%s is refused: %s", name, reasonOf(f))
		}
		return
	}
	switch {
	case f.Text != "" && v.kind == StringField && patterns[f.Text].MatchString(v.text):
	case f.Text == bandwidthText && v.kind == StringField:
		c.fault(at, bandwidthFix, "%s cannot be %q", nameOf(name), shorten(v.text))
		return
	case !typed(f.Type, v):
		c.fault(at, fixType(f, v), "%s must be %s, not %s", nameOf(name), f.Type.article(), v.describe())
		return
	case f.Type == ArrayField:
		c.count(at, name, f, len(v.items))
		item := lookup[f.Pointer+"/*"]
		for i := range v.items {
			c.value(at+"/"+itoa(i), item, &v.items[i])
		}
	case f.Type == ObjectField:
		c.object(at, f, v)
	case f.Type == StringField:
		c.text(at, name, f, v.text)
	case f.Type == IntegerField || f.Type == NumberField:
		c.number(at, name, f, v.text)
	}
	if rule := rules[f.Pointer]; rule != nil {
		rule(c, at, v)
	}
}

func (c checker) object(at string, f *Field, v *value) {
	any := lookup[f.Pointer+"/*"]
	if any != nil {
		c.count(at, f.Name(), f, len(v.members))
	}
	for i := range v.members {
		m := &v.members[i]
		child := lookup[f.Pointer+"/"+m.key]
		switch {
		case any != nil && (len(m.key) > maxKey || m.key == "" || strings.ContainsFunc(m.key, unicode.IsControl)):
			c.fault(at+"/"+escape(shorten(m.key)), fmt.Sprintf("1 to %d bytes without control characters", maxKey), "key %q of %s is invalid", shorten(m.key), f.Name())
		case any != nil:
			c.value(at+"/"+escape(m.key), any, &m.value)
		case child == nil || m.key == "*" || strings.Contains(m.key, "/"): // not a key of a pointer
			c.unknown(at, f, m.key)
		case m.kind == "" && !child.Required: // null is absent
		default:
			c.value(at+"/"+m.key, child, &m.value)
		}
	}
	for _, name := range below[f.Pointer] {
		if any == nil && lookup[f.Pointer+"/"+name].Required && !slices.ContainsFunc(v.members, func(m member) bool { return m.key == name }) {
			c.fault(at+"/"+name, fixMissing(lookup[f.Pointer+"/"+name]), "%s is missing", name)
		}
	}
}

// maxKey is the maximum length of a key of an object that takes any keys.
const maxKey = 128

func (c checker) unknown(at string, f *Field, key string) {
	if c.full() {
		c.More++
		return
	}
	fix := ""
	if known := didYouMean(key, below[f.Pointer]); known != "" {
		fix = "did you mean " + known + "?"
	} else if home := homeOf(key); home != "" {
		fix = "it belongs in " + home
	}
	key, pointer := shorten(key), at+"/"+escape(key)
	c.add(Fault{Pointer: pointer, Field: key, Message: fmt.Sprintf("there is no field %q here", key), Fix: fix})
}

// homeOf returns the pointer of the object that has a field of that name, or "".
func homeOf(key string) string {
	for i := range Fields {
		if f := &Fields[i]; f.Pointer != "" && f.Name() == key && f.Status != Refused {
			return beforeLast(f.Pointer, '/')
		}
	}
	return ""
}

func (c checker) count(at, name string, f *Field, n int) {
	switch {
	case n < f.Min:
		c.fault(at, "add entries", "%s needs at least %d entries", name, f.Min)
	case f.Max > 0 && n > f.Max:
		c.fault(at, "remove some", "%s has %d entries, want at most %d", name, n, f.Max)
	}
}

func (c checker) text(at, name string, f *Field, s string) {
	re := patterns[f.Pattern]
	switch {
	case f.Length > 0 && len(s) > f.Length:
		c.fault(at, "shorten it", "%s has %d bytes, want at most %d", name, len(s), f.Length)
	case strings.ContainsRune(s, 0):
		c.fault(at, "remove it", "%s contains a NUL character", name)
	case len(f.Enum) > 0 && !slices.Contains(f.Enum, s) && !slices.Contains(f.Aliases, s):
		c.fault(at, fixEnum(f, s), "%s cannot be %q", name, shorten(s))
	case re != nil && !re.MatchString(s):
		c.fault(at, fixPattern[f.Pattern], "%s cannot be %q", name, shorten(s))
	}
}

const fixSibling = "name.namespace of a service of the application, or only its name if it is unique"

var fixPattern = map[string]string{
	namePattern:     "1 to 30 letters, digits and inner hyphens",
	runtimePattern:  "container, process, or the name of a runtime that nodes offer, in lower case",
	envPattern:      "KEY=value, where KEY has letters, digits and _, and does not begin with a digit",
	volumePattern:   "at most 63 lower-case letters, digits and inner hyphens",
	machinePattern:  "at most 63 lower-case letters, digits and inner hyphens",
	addressPattern:  "auto, or an IPv4 address",
	callerPattern:   "app, tenant, none, <app>.<ns> or <app>.<ns>.<service>.<ns>; of another tenant with <tenant>/ in front",
	calleePattern:   "<tenant>/<app>.<ns> or <tenant>/<app>.<ns>.<service>.<ns>",
	devicePattern:   "a CDI kind, vendor.com/class, or a name of a-z, 0-9 and inner . _ -",
	addonPattern:    "at most 63 letters, digits and inner . _ - /",
	areaPattern:     "a place's name or a country's code: munich, de",
	labelPattern:    "key=value, key!=value, key or !key",
	byPattern:       "node, cluster, or the key of a label of nodes",
	maybePattern:    fixSibling,
	siblingPattern:  fixSibling,
	`^$`:            "leave it empty: the system assigns it",
	tolerateText:    "a whole number with its unit: 500ms, 60s, 5m",
	modePattern:     "octal digits in quotation marks: \"0440\"",
	sourcePattern:   "NAME or NAME.KEY of the tenant's own; a name has lower-case letters, digits and inner hyphens",
	platformPattern: "linux/ and a processor as Go names it, without a variant: linux/arm64",

	labelKeyPattern:   "1 to 128 letters, digits and inner . _ / -: team or example.org/team",
	labelValuePattern: "at most 128 letters, digits, spaces and . _ / : @ + , -",

	checkPathPattern:   fixCheckPath,
	checkHeaderPattern: fixCheckHeader,
	checkStatusPattern: fixCheckStatus,
	checkGRPCPattern:   fixCheckGRPC,
}

var archNames = map[string]string{"x86_64": "amd64", "x86-64": "amd64", "x64": "amd64", "aarch64": "arm64", "armv7": "arm", "armv7l": "arm", "i386": "386"}

func fixEnum(f *Field, s string) string {
	if f.Name() == "sla_version" && s == "v1.0" {
		return "v1.0 is deprecated: write v2.0"
	}
	if known := archNames[s]; known != "" && slices.Contains(f.Enum, known) {
		return "did you mean " + known + "?"
	}
	if f.Name() == "move" && s != "" {
		return "volume, or leave it out; the contents of an instance's memory cannot move to another node"
	}
	if known := didYouMean(s, f.Enum); known != "" {
		return "did you mean " + known + "?"
	}
	return "one of " + strings.Join(slices.DeleteFunc(slices.Clone(f.Enum), func(e string) bool { return e == "" }), ", ")
}

func (c checker) number(at, name string, f *Field, literal string) {
	n, err := strconv.ParseFloat(literal, 64)
	switch {
	case f.Type == IntegerField && strings.ContainsAny(literal, ".eE"):
		c.fault(at, "round it", "%s must be a whole number, not %s", name, shorten(literal))
	case err != nil || n < float64(f.Min) || n > float64(f.Max):
		c.fault(at, cmp.Or(f.Fix, fmt.Sprintf("%d to %d%s", f.Min, f.Max, unitOf(f))), "%s is %s, out of range", name, shorten(literal))
	case f.Type == NumberField && !thousandths(literal):
		c.fault(at, "round it to thousandths", "%s is %s, finer than thousandths", name, shorten(literal))
	}
}

// thousandths reports whether a number in range has at most 3 decimals.
func thousandths(literal string) bool {
	if len(literal) > 32 {
		return false // limits the arithmetic below
	}
	if _, exp, ok := strings.Cut(strings.ToLower(literal), "e"); ok {
		if e, err := strconv.Atoi(exp); err != nil || e < -32 || e > 32 {
			return false
		}
	}
	r, ok := new(big.Rat).SetString(literal)
	return ok && r.Mul(r, big.NewRat(1000, 1)).IsInt()
}

// fixType returns how to correct a value of the wrong type.
func fixType(f *Field, v *value) string {
	_, err := strconv.ParseFloat(v.text, 64)
	want := f.Type
	switch {
	case v.kind == NumberField && strings.HasPrefix(f.Pointer, constraintPath+"/polygon"):
		return `write each corner in quotation marks: "48.14N,11.58E"`
	case v.kind == "":
		return "give it a value, or leave it out"
	case (want == IntegerField || want == NumberField) && v.kind == StringField && err == nil:
		return "write " + shorten(v.text) + " without quotation marks"
	case want == StringField && v.kind == NumberField:
		return `write "` + shorten(v.text) + `", in quotation marks`
	}
	return map[FieldType]string{
		ObjectField: "write its fields: {…}", ArrayField: "write a list: […]", StringField: `write text: "…"`,
		IntegerField: "write a whole number", NumberField: "write a number", BooleanField: "write true or false",
	}[want]
}

func fixMissing(f *Field) string {
	switch {
	case len(f.Enum) > 0:
		return fixEnum(f, "")
	case fixPattern[f.Pattern] != "":
		return "give it: " + fixPattern[f.Pattern]
	}
	return "give it"
}

func unitOf(f *Field) string {
	if f.Unit == "" {
		return ""
	}
	return " " + f.Unit
}

// neutral reports whether a value has no effect. Oakestra's own files have such values for unused
// fields.
func neutral(v *value) bool {
	switch v.kind {
	case StringField:
		return v.text == ""
	case NumberField:
		n, err := strconv.ParseFloat(v.text, 64)
		return err == nil && n == 0
	case BooleanField:
		return !v.truth
	}
	return len(v.members) == 0 && len(v.items) == 0
}

// idle reports whether the value of a refused field has no effect: it is neutral, or a list of
// empty strings, which Oakestra's files contain.
func idle(v *value) bool {
	return neutral(v) || v.kind == ArrayField && !slices.ContainsFunc(v.items, func(item value) bool { return item.kind != StringField || item.text != "" })
}

func reasonOf(f *Field) string {
	if strings.HasPrefix(f.Until, "until ") {
		return "it is not supported " + f.Until
	}
	return f.Until
}

func typed(t FieldType, v *value) bool {
	if t == IntegerField {
		t = NumberField
	}
	return v.kind == t
}

func nameOf(name string) string {
	if name == "" {
		return "the document"
	}
	return name
}

func (t FieldType) article() string {
	if strings.ContainsRune("aio", rune(t[0])) {
		return "an " + string(t)
	}
	return "a " + string(t)
}

func (v *value) describe() string {
	switch v.kind {
	case "":
		return "null"
	case StringField:
		return "the string " + strconv.Quote(shorten(v.text))
	case NumberField:
		return "the number " + shorten(v.text)
	case BooleanField:
		return strconv.FormatBool(v.truth)
	}
	return v.kind.article()
}
