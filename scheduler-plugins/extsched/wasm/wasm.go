// Package wasm runs a scheduler that is a WebAssembly module: a WASI preview 1 command that
// reads a sched.Ask as JSON from standard input and writes a sched.Answer to standard output.
// Each question starts a new instance without files, network or environment. Clock and random
// numbers are the same in each instance, so that the same question gets the same answer.
//
//	m, err := wasm.Load(ctx, "/etc/treeline/best.wasm")
//	answer, err := m.Rank(ctx, ask)
package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"github.com/treeline-edge/treeline/api"
)

// The bounds of a module, in bytes.
const (
	MaxModule = 32 << 20 // of the file
	MaxMemory = 64 << 20 // while it runs
	MaxAnswer = 4 << 20  // of its output; more is an error
)

const pageSize = 64 << 10

// Module is a compiled module. It is safe for concurrent use.
type Module struct {
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
}

// Load compiles the module in a file. It returns ErrInvalid for a file that is not a WASI
// preview 1 command or exceeds MaxModule.
func Load(ctx context.Context, path string) (*Module, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("scheduler module: %w", err)
	}
	if info.Size() > MaxModule {
		return nil, fmt.Errorf("scheduler module %s has %d bytes, limit %d: %w", path, info.Size(), MaxModule, api.ErrInvalid)
	}
	code, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("scheduler module: %w", err)
	}
	m, err := compile(ctx, code)
	if err != nil {
		return nil, fmt.Errorf("scheduler module %s: %w", path, err)
	}
	return m, nil
}

func compile(ctx context.Context, code []byte) (*Module, error) {
	config := wazero.NewRuntimeConfig().
		WithCloseOnContextDone(true). // ends an endless loop at the deadline
		WithMemoryLimitPages(MaxMemory / pageSize)
	r := wazero.NewRuntimeWithConfig(ctx, config)
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, r); err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	c, err := r.CompileModule(ctx, code)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("compile: %w: %w", err, api.ErrInvalid), r.Close(ctx))
	}
	if _, ok := c.ExportedFunctions()["_start"]; !ok {
		return nil, errors.Join(fmt.Errorf("not a WASI preview 1 command: it exports no _start: %w", api.ErrInvalid), r.Close(ctx))
	}
	for _, f := range c.ImportedFunctions() {
		if from, name, _ := f.Import(); from != wasi_snapshot_preview1.ModuleName {
			return nil, errors.Join(fmt.Errorf("imports %s.%s, only WASI preview 1 is available: %w", from, name, api.ErrInvalid), r.Close(ctx))
		}
	}
	return &Module{r, c}, nil
}

// Close frees the module. No Rank may be running.
func (m *Module) Close(ctx context.Context) error { return m.runtime.Close(ctx) }

// Rank runs the module on one question. It fails if the module exits with a status other than
// 0, writes more than MaxAnswer or runs longer than ctx. The error quotes the module's
// standard error.
func (m *Module) Rank(ctx context.Context, ask []byte) ([]byte, error) {
	out, stderr := &bounded{max: MaxAnswer}, &bounded{max: 512}
	// wazero's default clocks, sleep and random numbers are deterministic.
	config := wazero.NewModuleConfig().WithName("").
		WithStdin(bytes.NewReader(ask)).WithStdout(out).WithStderr(stderr)
	instance, err := m.runtime.InstantiateModule(ctx, m.compiled, config)
	if instance != nil {
		defer func() { _ = instance.Close(context.WithoutCancel(ctx)) }()
	}
	var exit *sys.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &exit) && exit.ExitCode() == 0:
	case err != nil:
		return nil, fmt.Errorf("the module failed: %s%s: %w", firstLine(err.Error()), quoted(stderr.String()), api.ErrInvalid)
	}
	if out.over {
		return nil, fmt.Errorf("the module wrote more than %d bytes: %w", MaxAnswer, api.ErrInvalid)
	}
	return out.Bytes(), nil
}

// bounded keeps the first max bytes that are written to it.
type bounded struct {
	bytes.Buffer
	max  int
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.max - b.Len()
	if len(p) > room {
		b.over = true
		b.Buffer.Write(p[:room])
		return len(p), nil
	}
	return b.Buffer.Write(p)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func quoted(s string) string {
	if s = strings.TrimSpace(s); s == "" {
		return ""
	}
	return fmt.Sprintf(" (stderr: %q)", strings.ToValidUTF8(s, "?"))
}
