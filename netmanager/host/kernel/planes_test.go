package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// recorder is a plane that records the calls of its methods.
type recorder struct {
	name string
	all  *[]string
	sync func() error
}

// starting is a recorder that the kernel may not support.
type starting struct {
	recorder
	start error
}

func (p starting) Start() error { return p.start }

func (p recorder) note(what string) error {
	*p.all = append(*p.all, p.name+" "+what)
	return nil
}

func (p recorder) Sync(context.Context, plane.State) error {
	return errors.Join(p.note("sync"), p.sync())
}
func (p recorder) Apply(context.Context, plane.Change) error  { return p.note("apply") }
func (p recorder) Usage(context.Context) (plane.Usage, error) { return plane.Usage{}, p.note("usage") }

func (p recorder) Traffic(context.Context) (map[api.PeerKey][2]uint64, error) {
	return nil, p.note("traffic")
}
func (p recorder) Remove(context.Context) error { return p.note("remove") }
func (p recorder) Close() error                 { return p.note("close") }

func TestPlaneThatTheKernelSupportsIsOpened(t *testing.T) {
	refused := fmt.Errorf("device 7: too many programs: %w", unix.EOPNOTSUPP)
	noMemory := fmt.Errorf("this kernel does not take the programs: %w: %w", unix.ENOMEM, api.ErrUnavailable)
	unclear := errors.New("look at a program: it is gone")
	for _, c := range []struct {
		name, want string
		start      error   // of ebpf
		syncs      []error // results of ebpf's Syncs, in sequence
		calls      string
		is         string
		warns      bool
	}{
		{name: "ebpf is taken", want: "auto", syncs: []error{nil, nil}, calls: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{
			name: "ebpf cannot be had", want: "auto", start: fmt.Errorf("old: %w", api.ErrUnavailable),
			calls: "ebpf close, nft sync, nft sync, nft apply", is: "nft",
		},
		{name: "its start fails for some reason", want: "auto", start: unclear, syncs: []error{nil, nil}, calls: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{name: "no other one is wanted, and it cannot be had", want: "ebpf", start: api.ErrUnavailable, syncs: []error{nil, nil}, calls: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{
			name: "its first sync is refused", want: "auto", syncs: []error{refused},
			calls: "ebpf sync, ebpf remove, ebpf close, ebpf close, nft sync, nft sync, nft apply", is: "nft", warns: true,
		},
		{name: "its first sync fails for want of memory", want: "auto", syncs: []error{noMemory, nil}, calls: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{name: "its first sync fails for some reason", want: "auto", syncs: []error{unclear, nil}, calls: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{name: "a later one is refused", want: "auto", syncs: []error{nil, refused}, calls: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{name: "what it is told is wrong", want: "auto", syncs: []error{api.ErrInvalid, nil}, calls: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{name: "no other one is wanted", want: "ebpf", syncs: []error{refused, refused}, calls: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all []string
			var log bytes.Buffer
			data := must[*os.Root](t)(os.OpenRoot(t.TempDir()))
			defer data.Close()
			chosen := &Planes{
				want: c.want, data: data, log: slog.New(slog.NewTextHandler(&log, nil)),
				all: map[string]func(string) (dataplane.Plane, error){
					"nft": func(string) (dataplane.Plane, error) {
						return recorder{"nft", &all, func() error { return nil }}, nil
					},
					"ebpf": func(string) (dataplane.Plane, error) {
						return starting{recorder{"ebpf", &all, func() error {
							err := c.syncs[0]
							c.syncs = c.syncs[1:]
							return err
						}}, c.start}, nil
					},
				},
			}
			p := must[dataplane.Plane](t)(chosen.Open())
			_ = p.Sync(t.Context(), plane.State{})
			_ = p.Sync(t.Context(), plane.State{})
			_ = p.Apply(t.Context(), plane.Change{})
			if got := strings.Join(all, ", "); got != c.calls {
				t.Errorf("calls: %s; want: %s", got, c.calls)
			}
			note := string(must[[]byte](t)(data.ReadFile(planeFile)))
			if chosen.Name() != c.is || note != c.is {
				t.Errorf("open plane %s, saved as %s; want %s", chosen.Name(), note, c.is)
			}
			if warns := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), refused.Error()); warns != c.warns {
				t.Errorf("logs a warning with the cause: %t, want %t:\n%s", warns, c.warns, &log)
			}
		})
	}
}

// A plane that never works must not keep the node off the network.
func TestPlaneThatKeepsFailingIsReplaced(t *testing.T) {
	var all []string
	why := errors.New("some reason")
	f := &fallback{Plane: recorder{"ebpf", &all, func() error { return why }}}
	f.instead = func(error) (dataplane.Plane, error) {
		return recorder{"nft", &all, func() error { return nil }}, nil
	}
	for range maxFailedSyncs - 1 {
		err := f.Sync(t.Context(), plane.State{})
		if !errors.Is(err, why) {
			t.Fatalf("Sync = %v, want %v before %d failures; calls: %v", err, why, maxFailedSyncs, all)
		}
	}
	if err := f.Sync(t.Context(), plane.State{}); err != nil || all[len(all)-1] != "nft sync" {
		t.Errorf("Sync after %d failures = %v, want nftables instead; calls: %v", maxFailedSyncs, err, all)
	}
}

// A partly written name would name no plane, and the plane in the kernel would not be removed.
func TestThePlanesNameIsReplacedAtomically(t *testing.T) {
	dir := t.TempDir()
	data := must[*os.Root](t)(os.OpenRoot(dir))
	defer data.Close()
	c := &Planes{data: data}
	if err := c.removeOther("ebpf"); err != nil {
		t.Fatal(err)
	}
	old := must[*os.File](t)(data.Open(planeFile))
	defer old.Close()
	if err := c.removeOther("nft"); err != nil {
		t.Fatal(err)
	}
	if text := must[[]byte](t)(io.ReadAll(old)); string(text) != "ebpf" {
		t.Errorf("the old file now has %q, want \"ebpf\": it was overwritten", text)
	}
	saved := must[*os.File](t)(data.Open(planeFile)) // while it is open its inode is not reused
	defer saved.Close()
	if err := c.removeOther("nft"); err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(must[os.FileInfo](t)(saved.Stat()), must[os.FileInfo](t)(data.Stat(planeFile))) {
		t.Error("an unchanged name was written again: on a full disk no netmanager would start")
	}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
