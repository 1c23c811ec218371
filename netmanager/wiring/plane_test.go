package wiring

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

// told is a plane that writes down what it is told.
type told struct {
	name string
	all  *[]string
	sync func() error
}

func (p told) note(what string) error {
	*p.all = append(*p.all, p.name+" "+what)
	return nil
}

func (p told) Sync(context.Context, plane.State) error {
	return errors.Join(p.note("sync"), p.sync())
}
func (p told) Apply(context.Context, plane.Change) error  { return p.note("apply") }
func (p told) Usage(context.Context) (plane.Usage, error) { return plane.Usage{}, p.note("usage") }
func (p told) Traffic(context.Context) (map[api.PeerKey][2]uint64, error) {
	return nil, p.note("traffic")
}
func (p told) Remove(context.Context) error { return p.note("remove") }
func (p told) Close() error                 { return p.note("close") }

func TestPlaneIsWhatTheKernelTakes(t *testing.T) {
	refused := fmt.Errorf("device 7: too many programs: %w", unix.EOPNOTSUPP)
	noMemory := fmt.Errorf("this kernel does not take the programs: %w: %w", unix.ENOMEM, api.ErrUnavailable)
	unclear := errors.New("look at a program: it is gone")
	for _, c := range []struct {
		name, want string
		available  error
		syncs      []error // of ebpf, in turn
		told       string
		is         string
		warns      bool
	}{
		{name: "ebpf is taken", want: "auto", syncs: []error{nil, nil}, told: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{
			name: "ebpf cannot be had", want: "auto", available: fmt.Errorf("old: %w", api.ErrUnavailable),
			told: "nft sync, nft sync, nft apply", is: "nft",
		},
		{
			name: "its first sync is refused", want: "auto", syncs: []error{refused},
			told: "ebpf sync, ebpf remove, ebpf close, ebpf close, nft sync, nft sync, nft apply", is: "nft", warns: true,
		},
		{name: "its first sync fails for want of memory", want: "auto", syncs: []error{noMemory, nil}, told: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{name: "its first sync fails for some reason", want: "auto", syncs: []error{unclear, nil}, told: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{name: "a later one is refused", want: "auto", syncs: []error{nil, refused}, told: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{name: "what it is told is wrong", want: "auto", syncs: []error{api.ErrInvalid, nil}, told: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
		{name: "no other one is wanted", want: "ebpf", syncs: []error{refused, refused}, told: "ebpf sync, ebpf sync, ebpf apply", is: "ebpf"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all []string
			var log bytes.Buffer
			data := must[*os.Root](t)(os.OpenRoot(t.TempDir()))
			defer data.Close()
			open := func(name string, sync func() error) func(string) (dataplane.Plane, error) {
				return func(string) (dataplane.Plane, error) { return told{name, &all, sync}, nil }
			}
			chosen := &chooser{
				want: c.want, data: data, log: slog.New(slog.NewTextHandler(&log, nil)),
				available: func() error { return c.available },
				planes: map[string]func(string) (dataplane.Plane, error){
					"nft": open("nft", func() error { return nil }),
					"ebpf": open("ebpf", func() error {
						err := c.syncs[0]
						c.syncs = c.syncs[1:]
						return err
					}),
				},
			}
			p := must[dataplane.Plane](t)(chosen.open())
			_ = p.Sync(t.Context(), plane.State{})
			_ = p.Sync(t.Context(), plane.State{})
			_ = p.Apply(t.Context(), plane.Change{})
			if got := strings.Join(all, ", "); got != c.told {
				t.Errorf("told: %s; want: %s", got, c.told)
			}
			note := string(must[[]byte](t)(data.ReadFile(planeFile)))
			if chosen.name() != c.is || note != c.is {
				t.Errorf("the plane is %s, and noted as %s; want %s", chosen.name(), note, c.is)
			}
			if warns := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), refused.Error()); warns != c.warns {
				t.Errorf("warns: %t, want %t:\n%s", warns, c.warns, &log)
			}
		})
	}
}

// A plane that never works must not keep the node off the network.
func TestPlaneThatFailsForLongGivesWay(t *testing.T) {
	var all []string
	why := errors.New("some reason")
	f := &fallback{Plane: told{"ebpf", &all, func() error { return why }}}
	f.instead = func(error) (dataplane.Plane, error) {
		return told{"nft", &all, func() error { return nil }}, nil
	}
	for range patience - 1 {
		if err := f.Sync(t.Context(), plane.State{}); !errors.Is(err, why) {
			t.Fatalf("it gave way: %v", all)
		}
	}
	if err := f.Sync(t.Context(), plane.State{}); err != nil || all[len(all)-1] != "nft sync" {
		t.Errorf("it did not give way: %v, %v", err, all)
	}
}

// A note that a crash cut short names no plane, and nobody would remove what there is.
func TestThePlaneIsNotedAsAWhole(t *testing.T) {
	dir := t.TempDir()
	data := must[*os.Root](t)(os.OpenRoot(dir))
	defer data.Close()
	c := &chooser{data: data}
	if err := c.dropOther("ebpf"); err != nil {
		t.Fatal(err)
	}
	old := must[*os.File](t)(data.Open(planeFile))
	defer old.Close()
	if err := c.dropOther("nft"); err != nil {
		t.Fatal(err)
	}
	if text := must[[]byte](t)(io.ReadAll(old)); string(text) != "ebpf" {
		t.Errorf("the old note was written over: %q", text)
	}
	noted := must[*os.File](t)(data.Open(planeFile)) // it is another's no sooner than it is closed
	defer noted.Close()
	if err := c.dropOther("nft"); err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(must[os.FileInfo](t)(noted.Stat()), must[os.FileInfo](t)(data.Stat(planeFile))) {
		t.Error("what is noted is written anew: on a full disk no life would begin")
	}
}
