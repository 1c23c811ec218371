// Package addon checks packages of addons and fills in the values of their parameters. The root and the command-line
// client use it, so that both accept the same packages.
//
//	err := addon.Check(pkg)
//	filled, err := addon.Fill(pkg, map[string]json.RawMessage{"port": []byte("1883")})
//	sla, err := api.ParseSLA(filled.SLA)
package addon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/jsonschema"
)

// Check returns ErrInvalid or ErrTooLarge with the first fault of a package, apart from those of its SLA and of
// resources, which depend on values.
func Check(p api.AddonPackage) error {
	text, err := json.Marshal(p)
	switch {
	case err != nil:
		return fmt.Errorf("package: %w: %w", err, api.ErrInvalid)
	case len(text) > api.MaxAddonBytes:
		return fmt.Errorf("the package has %d bytes as JSON, want at most %d: %w", len(text), api.MaxAddonBytes, api.ErrTooLarge)
	case !api.ValidAddonName(p.Name):
		return fmt.Errorf("name %.80q: want at most 63 lower-case letters, digits and inner hyphens: %w", p.Name, api.ErrInvalid)
	case !validVersion(p.Version):
		return fmt.Errorf("version %.80q: want a semantic version such as 1.4.0: %w", p.Version, api.ErrInvalid)
	case p.MinTreeline != "" && !validVersion(p.MinTreeline):
		return fmt.Errorf("min_treeline %.80q: want a semantic version such as 1.4.0: %w", p.MinTreeline, api.ErrInvalid)
	case len(p.Kinds) > api.MaxAddonKinds || len(p.Resources) > api.MaxAddonResources || len(p.Webhooks) > api.MaxAddonWebhooks:
		return fmt.Errorf("%d kinds, %d resources, %d webhooks: want at most %d, %d and %d: %w", len(p.Kinds), len(p.Resources), len(p.Webhooks),
			api.MaxAddonKinds, api.MaxAddonResources, api.MaxAddonWebhooks, api.ErrTooLarge)
	case len(p.SLA) == 0 && len(p.Kinds) == 0 && len(p.Webhooks) == 0:
		return fmt.Errorf("the package has no SLA, kinds or webhooks: %w", api.ErrInvalid)
	}
	kinds := map[string]bool{}
	for _, k := range p.Kinds {
		if !api.ValidKindName(k.Name) || kinds[k.Name] {
			return fmt.Errorf("kind %.80q: want a unique name of at most 63 lower-case letters, digits and inner hyphens that is not one of Treeline's kinds: %w", k.Name, api.ErrInvalid)
		}
		if len(k.Description) > 500 {
			return fmt.Errorf("kind %s: its description has %d bytes, want at most 500: %w", k.Name, len(k.Description), api.ErrTooLarge)
		}
		if _, err := jsonschema.Compile(k.Schema); err != nil {
			return fmt.Errorf("kind %s: %w", k.Name, err)
		}
		kinds[k.Name] = true
	}
	names := map[string]bool{}
	for _, r := range p.Resources {
		switch id := r.Kind + ":" + r.Name; {
		case !kinds[r.Kind]:
			return fmt.Errorf("resource %.80q: kind %.80q is not in the package: %w", r.Name, r.Kind, api.ErrInvalid)
		case !api.ValidResourceName(r.Name) || names[id]:
			return fmt.Errorf("resource %.160q: want a unique name of at most 63 lower-case letters, digits and inner hyphens: %w", id, api.ErrInvalid)
		default:
			names[id] = true
		}
	}
	_, err = parameters(p)
	return err
}

func validVersion(v string) bool {
	return len(v) <= 64 && semver.IsValid("v"+v) && strings.Count(strings.SplitN(v, "-", 2)[0], ".") == 2
}

// Compare compares two versions: below 0 if a is older than b. Versions that are none compare as the oldest.
func Compare(a, b string) int { return semver.Compare("v"+a, "v"+b) }

// Runs reports whether a root of a version may install the package. A root without a version, such as one that a
// developer built, may.
func Runs(p api.AddonPackage, version string) bool {
	v := strings.TrimPrefix(version, "v")
	return p.MinTreeline == "" || !validVersion(v) || Compare(v, p.MinTreeline) >= 0
}

// Filled are the parts of a package with the values of its parameters.
type Filled struct {
	SLA       []byte // nil: none
	Resources []api.NewCustomResource
	Webhooks  []api.AddonWebhook
}

var parameterName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,62}$`)

// parameters returns the parameters of a package with their defaults, nil for one without.
func parameters(p api.AddonPackage) (map[string]json.RawMessage, error) {
	if len(p.Parameters) == 0 {
		return nil, nil
	}
	if _, err := jsonschema.Compile(p.Parameters); err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(p.Parameters, &s); err != nil {
		return nil, fmt.Errorf("parameters: %w: %w", err, api.ErrInvalid)
	}
	out := map[string]json.RawMessage{}
	for name, property := range s.Properties {
		if !parameterName.MatchString(name) {
			return nil, fmt.Errorf("parameter %.80q: want at most 63 letters, digits, - and _, and a letter first: %w", name, api.ErrInvalid)
		}
		var d struct {
			Default json.RawMessage `json:"default"`
		}
		_ = json.Unmarshal(property, &d) // true and false are schemas, too
		out[name] = d.Default
	}
	return out, nil
}

// Merge returns the values of an addon after an upgrade: those before, with changes; null removes one.
func Merge(before, changes map[string]json.RawMessage) map[string]json.RawMessage {
	out := maps.Clone(before)
	if out == nil {
		out = map[string]json.RawMessage{}
	}
	for k, v := range changes {
		if out[k] = v; string(bytes.TrimSpace(v)) == "null" {
			delete(out, k)
		}
	}
	return out
}

// Fill checks values by the parameters of a package that Check accepts, and fills them in.
func Fill(p api.AddonPackage, values map[string]json.RawMessage) (f Filled, err error) {
	if text, err := json.Marshal(values); err != nil || len(text) > api.MaxAddonValues {
		return f, fmt.Errorf("the values have %d bytes as JSON, want at most %d: %w", len(text), api.MaxAddonValues, errors.Join(err, api.ErrTooLarge))
	}
	all, err := parameters(p)
	if err != nil {
		return f, err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, ok := all[name]; !ok {
			return f, fmt.Errorf("value %.80q: %s %s has the parameters %s: %w", name, p.Name, p.Version, list(all), api.ErrInvalid)
		}
		all[name] = values[name]
	}
	maps.DeleteFunc(all, func(_ string, v json.RawMessage) bool { return v == nil })
	if len(p.Parameters) > 0 {
		text, err := json.Marshal(all)
		if err != nil {
			return f, fmt.Errorf("values: %w: %w", err, api.ErrInvalid)
		}
		schema, err := jsonschema.Compile(p.Parameters)
		if err != nil {
			return f, fmt.Errorf("parameters: %w", err)
		}
		if err := schema.Check(text); err != nil {
			return f, fmt.Errorf("values of %s %s: %w", p.Name, p.Version, err)
		}
	}
	r := renderer{values: map[string]any{}, left: 2 * api.MaxAddonBytes}
	for name, v := range all {
		if r.values[name], err = decode(v); err != nil {
			return f, fmt.Errorf("value %s: %w", name, err)
		}
	}
	if len(p.SLA) > 0 {
		if f.SLA, err = r.json(p.SLA); err != nil {
			return f, fmt.Errorf("sla: %w", err)
		}
	}
	for _, o := range p.Resources {
		if o.Spec, err = r.json(o.Spec); err != nil {
			return f, fmt.Errorf("resource %s:%s: %w", o.Kind, o.Name, err)
		}
		f.Resources = append(f.Resources, o)
	}
	for _, h := range p.Webhooks {
		u, err := r.text(h.URL)
		if err != nil {
			return f, fmt.Errorf("webhook %.200q: %w", h.URL, err)
		}
		text, ok := u.(string)
		if !ok {
			return f, fmt.Errorf("webhook %.200q: its URL is not a string: %w", h.URL, api.ErrInvalid)
		}
		h.URL = text
		f.Webhooks = append(f.Webhooks, h)
	}
	return f, nil
}

func list(all map[string]json.RawMessage) string {
	if len(all) == 0 {
		return "(none)"
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), ", ")
}

func decode(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err = d.Decode(&v); err != nil {
		return nil, fmt.Errorf("%w: %w", err, api.ErrInvalid)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("want one JSON value: %w", api.ErrInvalid)
	}
	return v, nil
}

// renderer replaces parameters by their values.
type renderer struct {
	values map[string]any
	left   int // bytes of strings that it may still make
}

func (r *renderer) json(text []byte) ([]byte, error) {
	v, err := decode(text)
	if err == nil {
		v, err = r.value(v)
	}
	if err != nil {
		return nil, err
	}
	out, err := json.Marshal(v)
	if err == nil && len(out) > api.MaxAddonBytes {
		err = fmt.Errorf("%d bytes with the values filled in, want at most %d: %w", len(out), api.MaxAddonBytes, api.ErrTooLarge)
	}
	return out, err
}

func (r *renderer) value(v any) (_ any, err error) {
	switch v := v.(type) {
	case string:
		return r.text(v)
	case []any:
		for i := range v {
			if v[i], err = r.value(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = r.value(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

var placeholder = regexp.MustCompile(`\$\{\{\s*([A-Za-z][A-Za-z0-9_-]{0,62})\s*\}\}`)

func (r *renderer) text(s string) (any, error) {
	if !strings.Contains(s, "${{") {
		return s, nil
	}
	var out strings.Builder
	at := 0
	for _, m := range placeholder.FindAllStringSubmatchIndex(s, -1) {
		name := s[m[2]:m[3]]
		v, ok := r.values[name]
		if !ok {
			return nil, fmt.Errorf("parameter %s in %.100q has no value; give one (--set %s=…), or declare it with a default: %w", name, s, name, api.ErrInvalid)
		}
		if m[0] == 0 && m[1] == len(s) {
			size, _ := json.Marshal(v)
			return v, r.take(len(size))
		}
		var text string
		switch v := v.(type) {
		case string:
			text = v
		case json.Number:
			text = v.String()
		case bool:
			text = fmt.Sprint(v)
		default:
			return nil, fmt.Errorf("parameter %s in %.100q is not a string, number or boolean, so that it cannot be a part of a string: %w", name, s, api.ErrInvalid)
		}
		if err := r.take(len(text)); err != nil {
			return nil, err
		}
		out.WriteString(s[at:m[0]])
		out.WriteString(text)
		at = m[1]
	}
	out.WriteString(s[at:])
	if strings.Contains(placeholder.ReplaceAllString(s, ""), "${{") {
		return nil, fmt.Errorf("%.100q: ${{ begins no parameter such as ${{ name }}: %w", s, api.ErrInvalid)
	}
	return out.String(), nil
}

func (r *renderer) take(n int) error {
	if r.left -= n; r.left < 0 {
		return fmt.Errorf("more than %d bytes of values are filled in: %w", 2*api.MaxAddonBytes, api.ErrTooLarge)
	}
	return nil
}
