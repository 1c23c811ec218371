package bounds

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// is returns a check that accepts the values for which ok is true. want describes them.
func is[V any](want string, ok func(V) bool) check {
	return func(c *checking, v reflect.Value) (reflect.Value, verdict) {
		x, same := v.Interface().(V)
		if !same {
			panic(fmt.Sprintf("the bound of %s is for another type than %s", strings.Join(c.path, "."), v.Type()))
		}
		if !ok(x) {
			c.violation(x, want)
			return v, refused
		}
		return v, kept
	}
}

// between accepts integers and durations from lo to hi.
func between(lo, hi int64) check {
	return func(c *checking, v reflect.Value) (reflect.Value, verdict) {
		in := false
		if v.CanUint() {
			in = v.Uint() <= math.MaxInt64 && int64(v.Uint()) >= lo && int64(v.Uint()) <= hi
		} else {
			in = v.Int() >= lo && v.Int() <= hi
		}
		if in {
			return v, kept
		}
		want := fmt.Sprintf("%d to %d", lo, hi)
		if v.Type() == reflect.TypeFor[time.Duration]() {
			want = fmt.Sprintf("%s to %s", time.Duration(lo), time.Duration(hi))
		}
		c.violation(v.Interface(), want)
		return v, refused
	}
}

// percent reduces numbers above 100 to 100, because measurements may exceed 100 slightly.
func percent(_ *checking, v reflect.Value) (reflect.Value, verdict) {
	if v.Uint() <= 100 {
		return v, kept
	}
	return reflect.ValueOf(uint8(100)), changed
}

// real accepts finite numbers from lo to hi.
func real(lo, hi float64) check {
	return is(fmt.Sprintf("%g to %g", lo, hi), func(f float64) bool { return f >= lo && f <= hi }) // false for NaN
}

// anything accepts every value; why is the reason that this is safe.
func anything(why string) check {
	if why == "" {
		panic("a field without a bound needs a reason")
	}
	return func(_ *checking, v reflect.Value) (reflect.Value, verdict) { return v, kept }
}

// word accepts strings of at most n bytes without control characters.
func word(n int) check {
	want := fmt.Sprintf("at most %d bytes of UTF-8 without control characters", n)
	return func(c *checking, v reflect.Value) (reflect.Value, verdict) {
		s := v.String()
		if len(s) <= n && utf8.ValidString(s) && !strings.ContainsFunc(s, isControl) {
			return v, kept
		}
		c.violation(s, want)
		return v, refused
	}
}

// text cuts strings after n bytes and appends "…". It is for texts that no program interprets.
func text(n int) check {
	return func(_ *checking, v reflect.Value) (reflect.Value, verdict) {
		s := v.String()
		if len(s) <= n && utf8.ValidString(s) {
			return v, kept
		}
		out := reflect.New(v.Type()).Elem()
		out.SetString(strings.ToValidUTF8(s[:min(n, len(s))], "") + "…")
		return out, changed
	}
}

// oneOf accepts the named values.
func oneOf[S ~string](all ...S) check {
	return is(fmt.Sprintf("one of %q", all), func(s S) bool { return slices.Contains(all, s) })
}

// machine accepts the names of clusters and nodes, and "".
func machine[S ~string]() check {
	return is("a DNS label in lower case", func(s S) bool { return s == "" || api.ValidMachineName(string(s)) })
}

// moment accepts the zero time and times from 2020 to 2199.
var moment = is("a time from 2020 to 2199", func(t time.Time) bool { return t.IsZero() || t.Year() >= 2020 && t.Year() < 2200 })

var (
	// address4 accepts IPv4 addresses and the zero Addr.
	address4 = is("an IPv4 address", func(a netip.Addr) bool { return !a.IsValid() || a.Is4() })
	address  = is("an address without a zone", func(a netip.Addr) bool { return a.Zone() == "" })
	endpoint = is("a zone of at most 32 bytes", func(a netip.AddrPort) bool { return len(a.Addr().Zone()) <= 32 })
	// prefix4 accepts masked IPv4 prefixes of at least 8 bits, and the zero Prefix.
	prefix4 = is("a masked IPv4 prefix of 8 to 32 bits", func(p netip.Prefix) bool {
		return p == (netip.Prefix{}) || p.IsValid() && p.Addr().Is4() && p.Bits() >= 8 && p == p.Masked()
	})
	peerKey    = is("a key other than zero", func(k api.PeerKey) bool { return k != api.PeerKey{} })
	coordinate = is("a coordinate of finite numbers below 10000", func(c api.Coordinate) bool { return vivaldi.Valid(&c) })
	place      = is("degrees of latitude and longitude on the earth", api.Geo.Valid)
)

// raw accepts at most n bytes.
func raw(n int) check {
	return is(fmt.Sprintf("at most %d bytes", n), func(b []byte) bool { return len(b) <= n })
}

// amount accepts resources of which each part is from lo to hi.
func amount(lo, hi api.Resources) check {
	return is(fmt.Sprintf("from %s to %s", lo, hi), func(r api.Resources) bool { return lo.Fits(r) && r.Fits(hi) })
}

// unit replaces a struct with its zero value if a value in it is refused.
func unit(c *checking, v reflect.Value) (reflect.Value, verdict) {
	out, verdict := plans[v.Type()](c, v)
	if verdict == refused {
		return reflect.Zero(v.Type()), changed
	}
	return out, verdict
}

// listOf accepts lists of at most n elements, each checked by elem or else by the check of its
// type. It removes refused elements and those beyond n.
func listOf(n int, elem ...check) check { return list{max: n, elem: elem}.check }

// strict is listOf, but refuses the whole list.
func strict(n int, elem ...check) check { return list{max: n, elem: elem, strict: true}.check }

// set is strict, and refuses lists in which two elements have the same name.
func set(n int, name func(reflect.Value) string, elem ...check) check {
	return list{max: n, elem: elem, strict: true, name: name}.check
}

// itself returns the name of an element that is a string.
func itself(v reflect.Value) string { return v.String() }

type list struct {
	max    int
	elem   []check // at most one
	strict bool
	name   func(reflect.Value) string
}

func (l list) check(c *checking, v reflect.Value) (reflect.Value, verdict) {
	n := v.Len()
	if n > l.max {
		c.violation(fmt.Sprintf("%d elements", n), fmt.Sprintf("at most %d", l.max))
		if l.strict {
			return v, refused
		}
		n = l.max
	}
	elem := plans[v.Type().Elem()]
	if len(l.elem) > 0 {
		elem = l.elem[0]
	}
	if elem == nil {
		elem = refuse
	}
	var seen map[string]bool
	if l.name != nil && n > 1 {
		seen = make(map[string]bool, n)
	}
	var out reflect.Value // the result, if it differs from v
	differ := func(upTo int) {
		if !out.IsValid() {
			out = reflect.MakeSlice(v.Type(), upTo, n)
			reflect.Copy(out, v.Slice(0, upTo))
		}
	}
	if n < v.Len() {
		differ(0)
	}
	for i := range n {
		c.path = append(c.path, strconv.Itoa(i))
		e, verdict := elem(c, v.Index(i))
		if seen != nil && verdict != refused {
			if name := l.name(e); seen[name] {
				c.violation(name, "each name once")
				verdict = refused
			} else {
				seen[name] = true
			}
		}
		c.path = c.path[:len(c.path)-1]
		if verdict == refused && l.strict {
			return v, refused
		}
		if verdict != kept {
			differ(i)
		}
		if verdict != refused && out.IsValid() {
			out = reflect.Append(out, e)
		}
	}
	if !out.IsValid() {
		return v, kept
	}
	return out, changed
}

// dict accepts maps of at most n entries, or refuses the whole map.
func dict(n int, key, value check) check {
	return func(c *checking, v reflect.Value) (reflect.Value, verdict) {
		if v.Len() > n {
			c.violation(fmt.Sprintf("%d entries", v.Len()), fmt.Sprintf("at most %d", n))
			return v, refused
		}
		for it := v.MapRange(); it.Next(); {
			if _, verdict := key(c, it.Key()); verdict != kept {
				return v, refused
			}
			if _, verdict := value(c, it.Value()); verdict != kept {
				return v, refused
			}
		}
		return v, kept
	}
}
