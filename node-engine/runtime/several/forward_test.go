package several

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/logs"
)

// optional are the optional interfaces of runtimes, by name.
var optional = map[string]reflect.Type{
	"Attacher":    reflect.TypeFor[runtime.Attacher](),
	"Executor":    reflect.TypeFor[runtime.Executor](),
	"Fetcher":     reflect.TypeFor[runtime.Fetcher](),
	"Filer":       reflect.TypeFor[runtime.Filer](),
	"Guarded":     reflect.TypeFor[runtime.Guarded](),
	"Housekeeper": reflect.TypeFor[runtime.Housekeeper](),
	"LogReader":   reflect.TypeFor[runtime.LogReader](),
	"Namespaced":  reflect.TypeFor[runtime.Namespaced](),
	"Purger":      reflect.TypeFor[runtime.Purger](),
}

// others are the interfaces of package runtime that are no optional part of a runtime.
var others = []string{"Input", "Running", "Runtime"}

// TestOptionalInterfacesAreListed reads the source of package runtime, so that a new interface is forwarded.
func TestOptionalInterfacesAreListed(t *testing.T) {
	files, err := filepath.Glob("../*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("source of package runtime: got %v, %v", files, err)
	}
	var found []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok && s.Name.IsExported() {
				if _, ok := s.Type.(*ast.InterfaceType); ok {
					found = append(found, s.Name.Name)
				}
			}
			return true
		})
	}
	want := append(slices.Collect(maps.Keys(optional)), others...)
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Errorf("interfaces of package runtime: got %v, this test knows %v. Forward a new optional interface in several.go and add it to this test", found, want)
	}
}

// full is a fake with all optional interfaces.
type full struct{ fake }

func (f *full) called(name string) { f.calls = append(f.calls, name) }

func (f *full) Attach(context.Context, wire.Key, bool) (runtime.Input, error) {
	f.called("Attach")
	return nil, nil
}

func (f *full) Exec(context.Context, wire.Key, runtime.Process) (runtime.Running, error) {
	f.called("Exec")
	return nil, nil
}

func (f *full) Fetch(context.Context, runtime.Workload) error {
	f.called("Fetch")
	return nil
}

func (f *full) Signal(context.Context, wire.Key, syscall.Signal) error {
	f.called("Signal")
	return nil
}

func (f *full) CgroupOf(context.Context, wire.Key) (string, error) {
	f.called("CgroupOf")
	return "", nil
}

func (f *full) Housekeep(context.Context) error {
	f.called("Housekeep")
	return nil
}

func (f *full) ReadLogs(context.Context, wire.Key, logs.Query, bool) (io.ReadCloser, error) {
	f.called("ReadLogs")
	return nil, nil
}

func (f *full) Namespace(context.Context, wire.Key) (string, runtime.Workload, error) {
	f.called("Namespace")
	return "", runtime.Workload{}, nil
}

func (f *full) Purge(context.Context) error {
	f.called("Purge")
	return nil
}

// TestOptionalInterfacesAreForwarded calls every method of every optional interface, for a workload of each
// of two runtimes. The runtime of the workload must get the call.
func TestOptionalInterfacesAreForwarded(t *testing.T) {
	k := wire.Key{Instance: "t/a.d.s.d#0"}
	all := []string{"Housekeep", "Purge"} // are for every runtime
	for name, iface := range optional {
		for _, virt := range []string{"microvm", "container"} {
			rest, vm := &full{fake{name: "container"}}, &full{fake{name: "microvm"}}
			want, not := rest, vm
			if virt == "microvm" {
				want, not = vm, rest
			}
			want.has = []wire.Key{k}
			rt := reflect.ValueOf(New(Member{Runtime: rest}, Member{Runtime: vm, Virtualizations: []string{"microvm"}, Has: vm.holds}))
			if !rt.Type().Implements(iface) {
				t.Errorf("several runtimes do not implement runtime.%s, which each of them does", name)
				break
			}
			for i := range iface.NumMethod() {
				method := iface.Method(i).Name
				call := rt.MethodByName(method)
				args := make([]reflect.Value, call.Type().NumIn())
				for n := range args {
					args[n] = reflect.Zero(call.Type().In(n))
					switch call.Type().In(n) {
					case reflect.TypeFor[context.Context]():
						args[n] = reflect.ValueOf(t.Context())
					case reflect.TypeFor[wire.Key]():
						args[n] = reflect.ValueOf(k)
					case reflect.TypeFor[runtime.Workload]():
						w := runtime.Workload{Key: k}
						w.Spec.Virtualization = virt
						args[n] = reflect.ValueOf(w)
					}
				}
				call.Call(args)
				if !slices.Contains(want.calls, method) {
					t.Errorf("%s.%s of a %s: its runtime was not called", name, method, virt)
				}
				if slices.Contains(not.calls, method) != slices.Contains(all, method) {
					t.Errorf("%s.%s of a %s: calls of the other runtime: got %v", name, method, virt, not.calls)
				}
			}
		}
	}
}
