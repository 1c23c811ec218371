package qemu

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
	"github.com/treeline-edge/treeline/testbed/vmimage"
)

func TestMain(m *testing.M) {
	ShimMain()
	os.Exit(m.Run())
}

func TestSuite(t *testing.T) {
	need(t)
	runtimetest.Run(t, func(t *testing.T) runtimetest.Harness {
		cfg := testConfig(t)
		return runtimetest.Harness{
			Open:          func() (runtime.Runtime, error) { return New(cfg, slog.New(slog.DiscardHandler)) },
			Spec:          spec,
			Program:       vmimage.Program,
			Broken:        api.Microservice{Virtualization: api.MicroVM, Code: "broken", Memory: 256},
			Missing:       api.Microservice{Virtualization: api.MicroVM, Code: "missing", Memory: 256},
			MissingReason: api.ReasonImageNotFound,
			Guest:         true,
			MemoryMB:      256,
			Left:          func(k wire.Key) []string { return left(t, cfg, k) },
		}
	}, "Exec", "Attach")
}

// TestUnikernelBoots boots a kernel of a few bytes, which has an entry for PVH, writes to the serial console
// and ends its machine with an exit code.
func TestUnikernelBoots(t *testing.T) {
	need(t)
	programtest.Need(t, "as", "ld")
	dir := t.TempDir()
	source := `.code32
.globl _start
_start:
	mov $text, %esi
1:	lodsb
	test %al, %al
	jz 2f
	mov $0x3f8, %dx
	out %al, %dx
	jmp 1b
2:	mov $0xf4, %dx
	mov $21, %al
	out %al, %dx
	hlt
text:	.asciz "hello\n"
.section .note.Xen, "a", @note
	.long 4, 4, 18
	.asciz "Xen"
	.long _start
`
	if err := os.WriteFile(dir+"/uk.s", []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"as", "--32", dir + "/uk.s", "-o", dir + "/uk.o"},
		{"ld", "-m", "elf_i386", "-Ttext=0x100000", "-N", "--no-warn-rwx-segments", "-o", dir + "/uk", dir + "/uk.o"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	kernel, err := os.ReadFile(dir + "/uk")
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t)
	cfg.Artifact = func(context.Context, runtime.Workload) (runtime.Artifact, error) {
		return runtime.Artifact{Digest: "uk", Layers: func(_ context.Context, read func(io.Reader) error) error {
			return read(archiveOf(t, map[string][]byte{"unikraft/bin/kernel": kernel}))
		}}, nil
	}
	r, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	k := wire.Key{Instance: "t/a.d.uk.d#0", Epoch: 1}
	t.Cleanup(func() { _ = r.Stop(context.Background(), k, 0) })
	w := runtime.Workload{Key: k, Attempt: 1, Spec: api.Microservice{Virtualization: api.Unikernel, Code: "uk", Memory: 128}}
	if err := r.Create(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	l, err := r.Logs(t.Context(), k, -1, true) // ends with the machine
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	text, err := io.ReadAll(l)
	if err != nil || !strings.Contains(string(text), "hello\n") {
		t.Errorf("log: got %q, %v, want hello", text, err)
	}
	all, err := r.List(t.Context())
	if err != nil || len(all) != 1 || all[0].ExitCode != 21 {
		t.Errorf("List: got %+v, %v, want exit code 21", all, err)
	}
}

func need(t testing.TB) {
	programtest.NeedRoot(t)
	programtest.Need(t, "qemu-system-x86_64")
}

func spec(args ...string) api.Microservice {
	return api.Microservice{Virtualization: api.MicroVM, Code: "linux", Memory: 256, VCPUs: 1, Cmd: append([]string{vmimage.Program}, args...)}
}

// linux has the files of an image with testbed/workload.
var linux = sync.OnceValues(func() (map[string][]byte, error) {
	return vmimage.Linux(context.Background(), program)
})

var program string // path of testbed/workload

// artifacts returns images without a registry: linux, broken (whose kernel is none), and none else.
func artifacts(t testing.TB) func(context.Context, runtime.Workload) (runtime.Artifact, error) {
	program = runtimetest.Program(t)
	files, err := linux()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string][]byte{
		"linux":  files,
		"broken": {"boot/vmlinuz": []byte("no kernel")},
	}
	return func(_ context.Context, w runtime.Workload) (runtime.Artifact, error) {
		files, ok := all[w.Spec.Code]
		if !ok {
			return runtime.Artifact{}, runtime.Errorf(api.ReasonImageNotFound, "image %q does not exist", w.Spec.Code)
		}
		return runtime.Artifact{Digest: w.Spec.Code, Layers: func(_ context.Context, read func(io.Reader) error) error {
			return read(archiveOf(t, files))
		}}, nil
	}
}

// archiveOf returns a tar archive of files.
func archiveOf(t testing.TB, files map[string][]byte) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

var parents atomic.Int64

func testConfig(t testing.TB) Config {
	t.Helper()
	cfg := Config{
		StateDir: t.TempDir(), Artifact: artifacts(t), Network: true,
		Options: Options{CgroupParent: fmt.Sprintf("/treeline-test/qemu-%d-%d", os.Getpid(), parents.Add(1))},
	}
	t.Cleanup(func() {
		cg, err := cgroup.Mounted()
		if err != nil {
			return
		}
		if err := cg.Group(cfg.CgroupParent).Remove(); err != nil {
			t.Error(err)
		}
	})
	return cfg
}

func left(t testing.TB, cfg Config, k wire.Key) []string {
	t.Helper()
	var out []string
	id := runtime.ID(k)
	for _, p := range []string{filepath.Join(cfg.StateDir, "w", id), filepath.Join(cfg.StateDir, "logs", id+".log"), namespaceOf(cfg.StateDir, id)} {
		if _, err := os.Stat(p); err == nil {
			out = append(out, p)
		}
	}
	cg, err := cgroup.Mounted()
	if err != nil {
		t.Fatal(err)
	}
	if g := cg.Group(filepath.Join(cfg.CgroupParent, id)); g.Exists() {
		out = append(out, "cgroup "+g.Path())
	}
	return out
}
