package daemon

import (
	"encoding"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/pflag"

	"github.com/treeline-edge/treeline/api"
)

// EnvPrefix is the prefix of the environment variables that set configuration: the key mqtt.url is
// TREELINE_MQTT_URL, and its flag is --mqtt-url.
const EnvPrefix = "TREELINE_"

// Source has the sources of configuration besides the defaults.
type Source struct {
	Args   []string            // without the program's name
	Env    func(string) string // such as os.Getenv; nil: no environment
	Stdin  io.Reader           // for a secret whose file is "-"; nil: os.Stdin
	Stdout io.Writer           // for --print-config, --help and --version
	Warn   func(text string)   // called for each secret that other users can read; may be nil
}

// maxConfig bounds a configuration file, in bytes.
const maxConfig = 256 << 10

// ErrDone means that Load carried out --print-config, --help or --version: there is nothing to run.
var ErrDone = errors.New("daemon: done")

// Load fills a copy of defaults, which is a struct, from the file named by --config or
// TREELINE_CONFIG (YAML or JSON), then from the environment, then from flags. Then it calls
// Validate() error of each struct that has it. Load changes nothing on the machine. It returns all
// faults together (ErrInvalid), or ErrDone after --print-config, --help and --version.
//
// A Secret can also be read from a file, or from stdin for "-": --token-file,
// TREELINE_TOKEN_FILE. Load warns of secrets in arguments and in files that other users can read.
//
// A field's yaml tag is its key, its usage tag the help text. Strings, booleans, numbers,
// durations, lists of strings and types with UnmarshalText can be set in every source; other lists
// and maps in the file only. A list of strings may be one text, with commas between its values. An old tag is a former key of the field, which every source accepts;
// if one source has both, the current key takes precedence.
func Load[C any](name string, defaults C, src Source) (C, error) {
	cfg := defaults
	l := &loader{env: src.Env}
	l.collect(reflect.ValueOf(&cfg).Elem(), "")

	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.SortFlags = false
	file := flags.String("config", l.getenv("CONFIG"), "configuration file, YAML or JSON")
	show := flags.Bool("print-config", false, "print the configuration in effect and end")
	version := flags.Bool("version", false, "print the version and end")
	for i := range l.fields {
		l.fields[i].flag(flags)
		if l.fields[i].old {
			_ = flags.MarkHidden(l.fields[i].flagName())
		}
	}
	l.warn, l.stdin = src.Warn, src.Stdin
	if l.warn == nil {
		l.warn = func(string) {}
	}
	switch err := flags.Parse(src.Args); {
	case errors.Is(err, pflag.ErrHelp):
		_, _ = fmt.Fprintf(src.Stdout, "Usage: %s [flags]\n\nEach flag is also %sNAME in the environment and a key of the file.\n\n%s", name, EnvPrefix, flags.FlagUsages())
		return cfg, ErrDone
	case err != nil:
		l.faults = append(l.faults, l.flagFault(err, flags))
	case flags.NArg() > 0:
		l.fault("argument %q: %s takes flags only", flags.Arg(0), name)
	case *version:
		_, _ = fmt.Fprintln(src.Stdout, name, Version())
		return cfg, ErrDone
	}
	if *file != "" {
		l.readFile(*file)
		if holdsSecret(reflect.ValueOf(cfg)) {
			l.checkMode(*file)
		}
	}
	l.readEnv()
	l.readFlags(flags)
	l.validate(reflect.ValueOf(&cfg).Elem(), "")
	if err := errors.Join(l.faults...); err != nil {
		return cfg, err
	}
	if *show {
		text, err := yaml.Marshal(cfg)
		if err != nil {
			return cfg, fmt.Errorf("print the configuration: %w", err)
		}
		_, _ = src.Stdout.Write(text)
		return cfg, ErrDone
	}
	return cfg, nil
}

type loader struct {
	env    func(string) string
	fields []field
	groups []string // paths of structs
	faults []error
	warn   func(string)
	stdin  io.Reader
}

// field is a value that can be set, with its path in the file: "mqtt.url".
type field struct {
	path, usage string
	value       reflect.Value
	old         bool // path is a former key of the field
}

func (f field) flagName() string { return strings.NewReplacer(".", "-", "_", "-").Replace(f.path) }
func (f field) envName() string {
	return EnvPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(f.path))
}

func (l *loader) getenv(key string) string {
	if l.env == nil {
		return ""
	}
	return l.env(EnvPrefix + key)
}

func (l *loader) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Errorf(format+": %w", append(args, api.ErrInvalid)...))
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

func (l *loader) collect(v reflect.Value, at string) {
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		name, opts, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		if !sf.IsExported() || name == "-" {
			continue
		}
		path := at + name
		if name == "" {
			path = at + strings.ToLower(sf.Name)
		}
		f := v.Field(i)
		isStruct := f.Kind() == reflect.Struct && !f.Addr().Type().Implements(textUnmarshaler)
		switch {
		case isStruct && (opts == "inline" || sf.Anonymous && name == ""):
			l.collect(f, at)
		case isStruct:
			l.groups = append(l.groups, path)
			l.collect(f, path+".")
		default:
			if old := sf.Tag.Get("old"); old != "" { // added first: the current key takes precedence
				l.fields = append(l.fields, field{path: at + old, usage: sf.Tag.Get("usage"), value: f, old: true})
			}
			l.fields = append(l.fields, field{path: path, usage: sf.Tag.Get("usage"), value: f})
		}
	}
}

// flag adds the field's flag. readFlags sets the field later, after the file and the environment.
func (f field) flag(flags *pflag.FlagSet) {
	if !settable(f.value) {
		return
	}
	if f.value.Kind() == reflect.Bool {
		flags.Bool(f.flagName(), f.value.Bool(), f.usage)
		return
	}
	if isList(f.value) {
		flags.StringArray(f.flagName(), f.value.Convert(reflect.TypeFor[[]string]()).Interface().([]string), f.usage)
		return
	}
	if f.secret() {
		flags.String(f.flagName(), fmt.Sprint(f.value.Interface()), f.usage+" (visible to other users; prefer --"+f.flagName()+"-file)")
		flags.String(f.flagName()+"-file", "", "file to read "+f.path+" from; - is stdin")
		return
	}
	flags.String(f.flagName(), fmt.Sprint(f.value.Interface()), f.usage)
}

// in reports whether doc, the settings below the path at, sets the field.
func (f field) in(doc map[string]any, at string) bool {
	_, ok := doc[strings.TrimPrefix(f.path, at)]
	return ok
}

func (f field) secret() bool { return f.value.Type() == reflect.TypeFor[Secret]() }

func isList(v reflect.Value) bool {
	return v.Kind() == reflect.Slice && v.Type().ConvertibleTo(reflect.TypeFor[[]string]())
}

func settable(v reflect.Value) bool {
	if isList(v) || v.Addr().Type().Implements(textUnmarshaler) {
		return true
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.Struct, reflect.Pointer, reflect.Interface, reflect.Func, reflect.Chan, reflect.Array:
		return false
	}
	return true
}

func (l *loader) readFile(path string) {
	f, err := os.Open(path)
	if err != nil {
		l.fault("configuration file: %v", err)
		return
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	switch {
	case err != nil:
		l.fault("configuration file: %v", err)
		return
	case len(data) > maxConfig:
		l.fault("configuration file %s: larger than %d bytes", path, maxConfig)
		return
	}
	var doc map[string]any
	if err := yaml.Unmarshal(data, &doc); err != nil {
		l.fault("configuration file %s: %v", path, firstLine(yaml.FormatError(err, false, false)))
		return
	}
	l.readMap(doc, "", path)
}

func (l *loader) readMap(doc map[string]any, at, file string) {
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		p, val := at+key, doc[key]
		if slices.Contains(l.groups, p) {
			switch sub := val.(type) {
			case map[string]any:
				l.readMap(sub, p+".", file)
			case nil:
			default:
				l.fault("%s: %s is a group of settings, not %v", file, p, val)
			}
			continue
		}
		i := slices.IndexFunc(l.fields, func(f field) bool { return f.path == p })
		if i < 0 {
			l.fault("%s: unknown key %q%s", file, p, l.guess(p))
			continue
		}
		if f := l.fields[i]; f.old && l.fields[i+1].in(doc, at) {
			continue // the current key takes precedence
		}
		if err := setAny(l.fields[i].value, val); err != nil {
			l.fault("%s: %s: %v", file, p, err)
		}
	}
}

func (l *loader) readEnv() {
	for _, f := range l.fields {
		if !settable(f.value) || l.env == nil {
			continue
		}
		if at := l.env(f.envName() + "_FILE"); at != "" && f.secret() {
			l.readSecret(f, at)
		}
		if s := l.env(f.envName()); s != "" {
			if err := setText(f.value, s); err != nil {
				l.fault("%s: %v", f.envName(), err)
			}
		}
	}
}

func (l *loader) readFlags(flags *pflag.FlagSet) {
	for _, f := range l.fields {
		if f.secret() {
			if at := flags.Lookup(f.flagName() + "-file"); at.Changed {
				l.readSecret(f, at.Value.String())
			}
		}
		fl := flags.Lookup(f.flagName())
		if fl == nil || !fl.Changed {
			continue
		}
		if f.secret() {
			l.warn(fmt.Sprintf("--%[1]s is visible to every user of this machine; use --%[1]s-file FILE, --%[1]s-file - for stdin, or %[2]s", fl.Name, f.envName()))
		}
		var err error
		if isList(f.value) {
			list, _ := flags.GetStringArray(fl.Name)
			f.value.Set(reflect.ValueOf(list).Convert(f.value.Type()))
		} else {
			err = setText(f.value, fl.Value.String())
		}
		if err != nil {
			l.fault("--%s: %v", fl.Name, err)
		}
	}
}

func setAny(v reflect.Value, val any) error {
	switch x := val.(type) {
	case nil:
		return nil
	case string, bool, int, int64, uint64, float64:
		if settable(v) { // a list with one value needs no brackets
			return setText(v, fmt.Sprint(x))
		}
	}
	// Lists, maps and other values that only a file can set.
	text, err := yaml.Marshal(val)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalWithOptions(text, v.Addr().Interface(), yaml.Strict()); err != nil {
		return errors.New(firstLine(yaml.FormatError(err, false, false)))
	}
	return nil
}

func setText(v reflect.Value, s string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(s))
	}
	var err error
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		var d time.Duration
		if d, err = time.ParseDuration(s); err != nil {
			return fmt.Errorf("%q is not a duration such as 1m30s", s)
		}
		v.SetInt(int64(d))
	case isList(v):
		var list []string
		if s != "" {
			list = strings.Split(s, ",")
		}
		v.Set(reflect.ValueOf(list).Convert(v.Type()))
	case v.Kind() == reflect.String:
		v.SetString(s)
	case v.Kind() == reflect.Bool:
		var b bool
		if b, err = strconv.ParseBool(s); err != nil {
			return fmt.Errorf("%q is neither true nor false", s)
		}
		v.SetBool(b)
	case v.CanInt():
		var n int64
		if n, err = strconv.ParseInt(s, 10, v.Type().Bits()); err != nil {
			return fmt.Errorf("%q is not a whole number within %d bits", s, v.Type().Bits())
		}
		v.SetInt(n)
	case v.CanUint():
		var n uint64
		if n, err = strconv.ParseUint(s, 10, v.Type().Bits()); err != nil {
			return fmt.Errorf("%q is not a whole number from 0 within %d bits", s, v.Type().Bits())
		}
		v.SetUint(n)
	case v.CanFloat():
		var n float64
		if n, err = strconv.ParseFloat(s, 64); err != nil {
			return fmt.Errorf("%q is not a number", s)
		}
		v.SetFloat(n)
	default:
		return fmt.Errorf("%q cannot be set as text", s)
	}
	return nil
}

// validate calls Validate of the inner structs, then of the struct.
func (l *loader) validate(v reflect.Value, at string) {
	if v.Kind() != reflect.Struct {
		return
	}
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		if !sf.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		if name != "" {
			name += "."
		}
		l.validate(v.Field(i), at+name)
	}
	if c, ok := v.Addr().Interface().(interface{ Validate() error }); ok {
		if err := c.Validate(); err != nil {
			if at != "" {
				err = fmt.Errorf("%s: %w", strings.TrimSuffix(at, "."), err)
			}
			if !errors.Is(err, api.ErrInvalid) {
				err = fmt.Errorf("%w: %w", err, api.ErrInvalid)
			}
			l.faults = append(l.faults, err)
		}
	}
}

func (l *loader) flagFault(err error, flags *pflag.FlagSet) error {
	msg := err.Error()
	if name, ok := strings.CutPrefix(msg, "unknown flag: --"); ok {
		var names []string
		flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		msg = fmt.Sprintf("unknown flag --%s%s", name, didYouMean(name, names, "--"))
	}
	return fmt.Errorf("%s: %w", msg, api.ErrInvalid)
}

func (l *loader) guess(path string) string {
	var paths []string
	for _, f := range l.fields {
		if !f.old {
			paths = append(paths, f.path)
		}
	}
	return didYouMean(path, append(paths, l.groups...), "")
}

func didYouMean(got string, known []string, mark string) string {
	best, at := "", max(2, len(got)/3)+1
	for _, k := range slices.Sorted(slices.Values(known)) {
		if d := api.EditDistance(got, k); d < at {
			best, at = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %s%s?", mark, best)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
