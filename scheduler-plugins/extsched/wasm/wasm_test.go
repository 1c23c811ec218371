package wasm_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/wasm"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// module returns a command whose _start has the given body, encoded by hand (WebAssembly
// Core Specification 1.0, section 5).
func module(body ...byte) []byte {
	body = append(append([]byte{0x00}, body...), 0x0b) // no locals, body, end
	code := append([]byte{0x01, byte(len(body))}, body...)
	m := []byte{
		0x00, 'a', 's', 'm', 0x01, 0x00, 0x00, 0x00,
		0x01, 0x04, 0x01, 0x60, 0x00, 0x00, // type: func () -> ()
		0x03, 0x02, 0x01, 0x00, // function 0 has type 0
		0x05, 0x03, 0x01, 0x00, 0x01, // memory: 1 page
		0x07, 0x0a, 0x01, 0x06, '_', 's', 't', 'a', 'r', 't', 0x00, 0x00, // export function 0 as _start
		0x0a, byte(len(code)),
	}
	return append(m, code...)
}

func load(t *testing.T, code []byte) (*wasm.Module, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.wasm")
	if err := os.WriteFile(path, code, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := wasm.Load(t.Context(), path)
	if err == nil {
		t.Cleanup(func() { _ = m.Close(context.Background()) })
	}
	return m, err
}

func TestFaultyModulesFail(t *testing.T) {
	for name, tt := range map[string]struct {
		body  []byte
		error string
	}{
		"crashes":             {[]byte{0x00}, "unreachable"},
		"loops without end":   {[]byte{0x03, 0x40, 0x0c, 0x00, 0x0b}, "deadline"},
		"recurses":            {[]byte{0x10, 0x00}, "stack"},
		"takes all memory":    {[]byte{0x03, 0x40, 0x41, 0x01, 0x40, 0x00, 0x41, 0x00, 0x4e, 0x0d, 0x00, 0x0b, 0x00}, "unreachable"}, // loop while memory.grow(1) >= 0
		"writes out of range": {[]byte{0x41, 0x7f, 0x41, 0x00, 0x36, 0x02, 0x00}, "out of bounds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := load(t, module(tt.body...))
			if err != nil {
				t.Fatal(err)
			}
			within := time.Minute
			if tt.error == "deadline" {
				within = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			if out, err := m.Rank(ctx, []byte("{}")); err == nil || !strings.Contains(err.Error(), tt.error) {
				t.Fatalf("output %q, error %v, want an error with %q", out, err, tt.error)
			}
		})
	}
	m, err := load(t, module())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := m.Rank(t.Context(), nil); err != nil || len(out) != 0 {
		t.Fatalf("a module without output returns %q, %v, want neither", out, err)
	}
}

func TestLoadRefusesWhatIsNoModule(t *testing.T) {
	library := module()
	copy(library[len(library)-14:], "\x07\x0a\x01\x06_other\x00\x00") // another name than _start
	for name, code := range map[string][]byte{"text": []byte("(module)"), "empty": nil, "library": library} {
		if _, err := load(t, code); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
	}
}

func TestExampleRanksTheLeastLoadedFirst(t *testing.T) {
	m, err := wasm.Load(t.Context(), "../../examples/quiet/quiet.wasm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(context.Background()) })
	question := sched.Ask{Key: `a"b\ü`, Candidates: []sched.Candidate{
		{ID: "busy", Load: 3, Free: api.Resources{MemoryMB: 9000}},
		{ID: "small", Load: 1, Free: api.Resources{MemoryMB: 10}},
		{ID: "large", Load: 1, Free: api.Resources{MemoryMB: 4000}},
	}}
	text, err := json.Marshal(question)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	answers := make([]string, 8)
	for i := range answers {
		wg.Go(func() {
			out, err := m.Rank(t.Context(), text)
			if err != nil {
				t.Error(err)
			}
			answers[i] = string(out)
		})
	}
	wg.Wait()
	var a sched.Answer
	if err := json.Unmarshal([]byte(answers[0]), &a); err != nil {
		t.Fatal(err)
	}
	if a.Key != question.Key || len(a.Ranked) != 3 || a.Ranked[0].ID != "large" || a.Ranked[1].ID != "small" {
		t.Fatalf("got %+v, want large, small, busy", a)
	}
	for _, other := range answers {
		if other != answers[0] {
			t.Fatalf("one question has two answers: %s and %s", answers[0], other)
		}
	}
	if _, err := m.Rank(t.Context(), []byte("{")); err == nil || !strings.Contains(err.Error(), "no JSON") {
		t.Fatalf("error is %v, want the module's standard error", err)
	}
}
