package containerd

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

var update = flag.Bool("update", false, "write the golden file anew")

// TestSpecGolden compares the specification of a container, except the list of system calls, with
// the reviewed testdata/spec.golden.json, so that no privilege is added by accident.
func TestSpecGolden(t *testing.T) {
	w := newWorkload(0, "serve")
	w.Spec.Memory, w.Spec.VCPUs, w.Spec.Environment = 64, 0.5, []string{"COLOUR=green", "TREELINE_ATTEMPT=9"}
	s := generate(t, Config{Options: Options{CgroupMount: true}}, w, "65532:65532")
	if s.Linux.Seccomp == nil || s.Linux.Seccomp.DefaultAction != specs.ActErrno {
		t.Fatal("seccomp: got no default action ERRNO, want it")
	}
	s.Linux.Seccomp.Syscalls = nil // they depend on containerd's profile and the kernel
	if m := s.Linux.Resources.Memory; m != nil {
		m.Swap = nil // it depends on the kernel's accounting
	}
	s.Version = ""
	got, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/spec.golden.json"
	if *update {
		if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(got)+"\n" != string(want) {
		t.Errorf("specification differs from %s; review the difference, then run with -update:\n%s", golden, got)
	}
}

func TestUser0HasTheListedCapabilities(t *testing.T) {
	s := generate(t, Config{}, newWorkload(0), "0:0")
	if got := s.Process.Capabilities; len(got.Bounding) != len(capabilities) || len(got.Effective) != len(capabilities) || len(got.Ambient) != 0 {
		t.Errorf("capabilities of user 0: got %+v, want %v", got, capabilities)
	}
}

func TestHostNetworkMountsTwoFiles(t *testing.T) {
	s := generate(t, Config{Options: Options{Network: api.NetworkHost}}, newWorkload(0), "1:1")
	for _, ns := range s.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			t.Error("network namespace: got one, want the host's")
		}
	}
	for _, m := range s.Mounts {
		if m.Type == "bind" && m.Destination != "/etc/hosts" && m.Destination != "/etc/resolv.conf" {
			t.Errorf("mounts: got the host's %s, want only hosts and resolv.conf", m.Source)
		}
	}
}

func TestOverlayMountsItsOwnNames(t *testing.T) {
	w := newWorkload(0)
	cfg := Config{Options: Options{Network: api.NetworkOverlay}, StateDir: t.TempDir()}
	if err := (&Runtime{cfg: cfg}).writeNames(w); err != nil {
		t.Fatal(err)
	}
	s := generate(t, cfg, w, "1:1")
	if !slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.NetworkNamespace && n.Path == cfg.netNSLink(runtime.ID(w.Key))
	}) {
		t.Errorf("namespaces: got %+v, want the network namespace that is made before", s.Linux.Namespaces)
	}
	if s.Linux.Sysctl["net.ipv4.ip_unprivileged_port_start"] != "0" {
		t.Errorf("sysctls: got %v, want low ports for every user", s.Linux.Sysctl)
	}
	text := map[string]string{}
	for _, m := range s.Mounts {
		if m.Type == "bind" {
			b, err := os.ReadFile(m.Source)
			if err != nil || !slices.Contains(m.Options, "ro") {
				t.Errorf("mount at %s: got options %v, %v, want ro", m.Destination, m.Options, err)
			}
			text[m.Destination] = string(b)
		}
	}
	if len(text) != 2 || !strings.Contains(text["/etc/resolv.conf"], "nameserver 169.254.30.53\n") || !strings.Contains(text["/etc/hosts"], "127.0.0.1 localhost\n") {
		t.Errorf("mounted files: got %q, want hosts and resolv.conf with the node's resolver", text)
	}
}

func generate(t *testing.T, cfg Config, w runtime.Workload, user string) *oci.Spec {
	t.Helper()
	if cfg.StateDir == "" {
		cfg.StateDir = "/unused"
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	blob, err := json.Marshal(v1.Image{
		Platform: v1.Platform{OS: "linux", Architecture: "amd64"},
		Config:   v1.ImageConfig{User: user, Env: []string{"PATH=/"}, Entrypoint: []string{"/app"}, WorkingDir: "/"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := namespaces.WithNamespace(t.Context(), cfg.Namespace)
	c := &containers.Container{ID: runtime.ID(w.Key)}
	// Groups of the user are looked up in the image, which has no files here.
	opts := slices.Insert(cfg.specOpts(w, oci.WithImageConfig(fakeImage{blob: blob})), 0, oci.WithRootFSPath(t.TempDir()))
	s, err := oci.GenerateSpec(ctx, nil, c, opts...)
	if err != nil {
		t.Fatal(err)
	}
	s.Root.Path = "rootfs"
	return s
}

// fakeImage has only a configuration.
type fakeImage struct {
	content.Store
	blob []byte
}

func (f fakeImage) Config(context.Context) (v1.Descriptor, error) {
	return v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(f.blob), Size: int64(len(f.blob))}, nil
}

func (f fakeImage) ContentStore() content.Store { return f }

func (f fakeImage) ReaderAt(context.Context, v1.Descriptor) (content.ReaderAt, error) {
	return blobReader(f.blob), nil
}

type blobReader []byte

func (b blobReader) ReadAt(p []byte, off int64) (int, error) { return copy(p, b[off:]), nil }
func (b blobReader) Size() int64                             { return int64(len(b)) }
func (b blobReader) Close() error                            { return nil }
