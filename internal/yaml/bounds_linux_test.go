package yaml_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/yaml"
)

// The maximum cost of reading one document of at most MaxBytes: CPU time of the reading thread, and
// total bytes allocated, including freed ones.
const (
	maxCPU   = 300 * time.Millisecond
	maxAlloc = 80 << 20
)

// parse reads a document as the root does.
func parse(doc []byte) error {
	doc, err := yaml.ToJSON(doc)
	if err != nil {
		return err
	}
	_, err = api.ParseSLA(doc)
	return err
}

// cost returns what one call of f costs, and its error. CPU time is that of the
// calling thread, so that other load on the machine does not count.
func cost(t testing.TB, f func() error) (cpu time.Duration, alloc uint64, err error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := threadTime(t)
	err = f()
	cpu = threadTime(t) - start
	runtime.ReadMemStats(&after)
	return cpu, after.TotalAlloc - before.TotalAlloc, err
}

func threadTime(t testing.TB) time.Duration {
	const thread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cheap fails the test if reading doc exceeds the limits. CPU time is measured
// up to three times, because a first call also pays for page faults.
func cheap(t testing.TB, name string, doc []byte, read func([]byte) error) {
	t.Helper()
	var best time.Duration
	for try := range 3 {
		cpu, alloc, err := cost(t, func() error { return read(doc) })
		if err != nil && !errors.Is(err, api.ErrInvalid) && !errors.Is(err, api.ErrTooLarge) {
			t.Fatalf("%s: an error of no kind: %v", name, err)
		}
		if alloc > maxAlloc {
			t.Errorf("%s: %d KiB allocated %d MiB, want at most %d MiB (%.80v)", name, len(doc)>>10, alloc>>20, maxAlloc>>20, err)
			return
		}
		if try == 0 || cpu < best {
			best = cpu
		}
		if best <= maxCPU {
			t.Logf("%-24s %4d KiB: %4d ms, %3d MiB, %.70v", name, len(doc)>>10, best.Milliseconds(), alloc>>20, err)
			return
		}
	}
	t.Errorf("%s: %d KiB cost %v of CPU, want at most %v", name, len(doc)>>10, best, maxCPU)
}

// full repeats a part until the document has as many bytes as are allowed.
func full(head, part, tail string) []byte {
	return []byte(head + strings.Repeat(part, (yaml.MaxBytes-len(head)-len(tail))/len(part)) + tail)
}

func counted(head, format, tail string, most int) []byte {
	var b bytes.Buffer
	b.WriteString(head)
	for i := 0; b.Len() < most-len(tail)-64; i++ {
		fmt.Fprintf(&b, format, i)
	}
	b.WriteString(tail)
	return b.Bytes()
}

// aliases returns a list in which each entry is an alias of the previous one.
func aliases(most int) []byte {
	var b bytes.Buffer
	b.WriteString("- &a0 x\n")
	for i := 1; b.Len() < most-64; i++ {
		fmt.Fprintf(&b, "- &a%d [*a%d]\n", i, i-1)
	}
	return b.Bytes()
}

// TestNoDocumentIsExpensive reads documents that are expensive for parsers of YAML.
func TestNoDocumentIsExpensive(t *testing.T) {
	deep := strings.Repeat(" ", 200) + "- "
	for name, doc := range map[string][]byte{
		"review: aliases":   full("a: &a 1\nb: [", "*a,", "]")[:848<<10],
		"review: flat map":  counted("", "k%d: 1\n", "", 953<<10),
		"review: anchors":   counted("", "- &a%d b\n", "", 681<<10),
		"review: brackets":  full("", "[", ""),
		"aliases, closed":   full("a: &a 1\nb: [", "*a,", "]"),
		"aliases of all":    full("a: &a [1,2,3,4,5,6,7,8]\nb: [", "*a,", "]"),
		"aliases of ones":   aliases(yaml.MaxBytes),
		"anchors, flow":     counted("[", "&a%d b,", "]", yaml.MaxBytes),
		"anchors, repeated": full("", "- &a b\n", ""),
		"list":              full("", "- a\n", ""), "flow": full("[", "a,", "]"), "braces": full("", "{", ""), "dashes": full("", "- ", "a"),
		"questions": full("", "? ", "a"), "quotes": full("", `"a" `, ""), "amps": full("", "&a ", ""), "tags": full("", "!a ", ""),
		"colons": full("", "a: ", ""), "comments": full("", "#\n", ""), "keys, comments": full("", "a:\n#b\n", ""),
		"entries, comments": full("", "-\n #x\n", ""), "flow, comments": full("[", "a, #x\n", "]"), "head comments": full("", "#x\n\n", "a: b"),
		"foot comments": full("a: b\n", "\n#c\n", ""), "line comments": full("", "- a #b\n", ""), "literal": full("a: |\n", "  x\n", ""),
		"literals": full("", "- |\n x\n", ""), "folded": full("a: >\n", "  x\n\n", ""), "plain": full("a: ", "x\n  ", ""), "markers": full("", "---\n", ""),
		"directives": full("", "%TAG !a! b\n", ""), "many directives": counted("", "%%TAG !a%d! b\n", "--- a\n", yaml.MaxBytes),
		"flow map": full("{", "a: b, ", "}"), "empty maps": full("", "k: {}\n", ""), "nested lists": full("", "- - a\n", ""),
		"escapes": full(`"`, `\n`, `"`), "open quote": full(`"`, `\n`, ""), "unicode": full(`"`, `\u0041`, `"`), "long number": full("a: ", "9", ""),
		"long fraction": full("a: 0.", "0", "1"), "long exponent": full("a: 1e", "9", ""), "underscores": full("a: 1", "_", "1"), "spaces": full("", " ", "a"),
		"newlines": full("", "\n", "a"), "wide": full("", deep, "a"), "explicit keys": full("", "? a\n: b\n", ""), "stairs": []byte(stairs(1400)),
		"stairs of flow": full("", "{a: ", ""), "JSON, brackets": full("", "[", "")[:10_000], "JSON, list": full("[1", ",1", "]"),
		"JSON, flat": counted("{", `"k%d":1,`, `"k":1}`, yaml.MaxBytes), "JSON, one key": full("{", `"k":1,`, `"k":1}`),
		"JSON, number": full(`{"a":`, "9", "}"), "JSON, string": full(`{"a":"`, `\u0041`, `"}`), "JSON, maps": full("[{}", ",{}", "]"), "JSON, nulls": full("[null", ",null", "]"),
		"JSON, strings": full(`[""`, `,""`, "]"), "JSON, spaces": full("{", " ", "}"), "JSON, long key": full(`{"`, "k", `":1}`),
	} {
		cheap(t, name, doc, parse)
	}
}

// TestNoSLAIsExpensive reads documents of the maximum size whose values are all, or almost all, allowed.
func TestNoSLAIsExpensive(t *testing.T) {
	service := func(i int, extra string) string {
		return fmt.Sprintf(`{"microservice_name":"s%d","microservice_namespace":"n","virtualization":"container","code":"nginx"%s}`, i, extra)
	}
	app := func(i int, services ...string) string {
		return fmt.Sprintf(`{"application_name":"a%d","application_namespace":"n","microservices":[%s]}`, i, strings.Join(services, ","))
	}
	sla := func(apps ...string) []byte {
		return []byte(`{"sla_version":"v2.0","applications":[` + strings.Join(apps, ",") + `]}`)
	}
	many := func(n int, extra string) []string {
		var out []string
		for i := range n {
			out = append(out, service(i, extra))
		}
		return out
	}
	sames := func(n int) []string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf(`{"microservice_name":"s","microservice_namespace":"n%d","constraints":[{"type":"apart","services":["s.m","s.n9999","s.o","s.p"]}]}`, i))
		}
		return out
	}
	list := func(n int, format string) string {
		var out []string
		for i := range n {
			out = append(out, strings.ReplaceAll(format, "%d", fmt.Sprint(i)))
		}
		return strings.Join(out, ",")
	}
	var services []string
	for i := range 64 {
		services = append(services, app(i, many(150, "")...))
	}
	docs := map[string][]byte{
		"services":     sla(services...),
		"environment":  sla(app(0, many(200, `,"environment":[`+list(256, `"K%d=v"`)+`]`)...)),
		"one key":      sla(app(0, many(200, `,"environment":[`+list(256, `"K=v"`)+`]`)...)),
		"apart":        sla(app(0, many(60, `,"constraints":[`+list(8, `{"type":"apart","by":"l%d","services":[`+list(200, `"s%d"`)+`]}`)+`]`)...)),
		"labels":       sla(app(0, many(250, `,"constraints":[`+list(4, `{"type":"labels","labels":[`+list(60, `"a%d!=b"`)+`]}`)+`]`)...)),
		"polygons":     sla(app(0, many(100, `,"constraints":[`+list(8, `{"type":"geo","polygon":[`+list(64, `"48.%d,11.%d"`)+`]}`)+`]`)...)),
		"ports":        sla(app(0, many(250, `,"port":"`+strings.ReplaceAll(list(300, "1%d:80"), ",", ";")+`"`)...)),
		"port range":   sla(app(0, many(250, `,"port":"`+strings.ReplaceAll(list(60, "1-65535"), ",", ";")+`"`)...)),
		"links":        sla(app(0, many(180, `,"connectivity":[`+list(64, `{"target_microservice_id":"s%d","con_constraints":[{"type":"latency","threshold":5}]}`)+`]`)...)),
		"callers":      sla(app(0, many(200, `,"callers":[`+list(256, `"a%d.n"`)+`]`)...)),
		"one name":     sla(app(0, many(250, `,"connectivity":[`+list(8, `{"target_microservice_id":"s.n%d","con_constraints":[{"type":"latency","threshold":5}]}`)+`]`)...), app(1, sames(3000)...)),
		"unknown keys": sla(app(0, many(200, ","+list(300, `"k%d":1`))...)),
		"addresses":    sla(app(0, many(250, `,"addresses":{"instances":[`+list(64, `{"from":%d,"to":%d}`)+`]}`)...)),
		"direct":       sla(app(0, many(60, `,"constraints":[`+list(4, `{"type":"direct","node":"`+strings.Repeat("a;", 2000)+`"}`)+`]`)...)),
		"devices":      sla(app(0, many(250, `,"devices":[`+list(16, `{"name":"d%d","count":1}`)+`]`)...)),
		"clusters":     sla(app(0, many(100, `,"constraints":[`+list(4, `{"type":"clusters","allowed":[`+list(250, `"c%d"`)+`]}`)+`]`)...)),
	}
	for name, doc := range docs {
		if len(doc) > yaml.MaxBytes {
			t.Errorf("%s has %d bytes: the test is to be corrected", name, len(doc))
			continue
		}
		cheap(t, name, doc, parse)
		written, err := yaml.FromJSON(doc)
		if err == nil && len(written) <= yaml.MaxBytes {
			cheap(t, name+", YAML", written, parse)
		}
	}
}

// FuzzCost repeats the fuzzer's input until the document has the maximum size, so that quadratic time
// or large allocations exceed the limits.
func FuzzCost(f *testing.F) {
	for _, s := range [][3]string{
		{"", "[", ""},
		{"[", "a,", "]"},
		{"a: &a 1\nb: [", "*a,", "]"},
		{"", "- &a b\n", ""},
		{"", "k: {}\n", ""},
		{"", "#\n", "a"},
		{"a: |\n", "  x\n", ""},
		{`{"sla_version":"v2.0","applications":[`, `{"application_name":"a","microservices":[]},`, `{}]}`},
		{"%YAML 1.2\n---\n", "a:\n", ""},
		{"a: >-\n", " \n  x", "\n"},
		{"", "? - a\n", ": b"},
		{"'", "''", "'"},
		{"<<: ", "a ", "\n"},
		{"[", "a: b\n,", "]"},
		{"{", `"a":"b",`, "}"},
		{"\ufeff", "é\u2028", "\u0085"},
	} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, head, part, tail string) {
		if len(part) == 0 || len(part) > 200 || len(head)+len(tail) > 400 {
			t.Skip()
		}
		cheap(t, "fuzz", full(head, part, tail), parse)
	})
}

// Accepted documents result in valid JSON within the bounds of an SLA.
func TestWhatIsReadKeepsTheBounds(t *testing.T) {
	for _, n := range []int{10, 1000, yaml.MaxValues - 10} {
		doc := "[" + strings.Repeat("a, ", n) + "1]"
		out, err := yaml.ToJSON([]byte(doc))
		if err != nil || !json.Valid(out) {
			t.Fatalf("%d values: %v", n, err)
		}
	}
	if _, err := yaml.ToJSON([]byte("[" + strings.Repeat("a, ", yaml.MaxValues+10) + "1]")); !errors.Is(err, api.ErrTooLarge) {
		t.Fatalf("more than %d values: %v, want ErrTooLarge", yaml.MaxValues, err)
	}
}
