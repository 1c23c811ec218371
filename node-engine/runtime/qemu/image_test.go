package qemu

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// zeros is an endless layer.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// header returns an archive that begins with a file of a size, and goes on without an end.
func header(t *testing.T, h tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	return io.MultiReader(&b, zeros{})
}

func newCache(t *testing.T, limit int64) *cache {
	t.Helper()
	c, err := openCache(t.TempDir(), limit)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestHostileImages: an image cannot fill the disk, escape its directory, or have anything but files.
func TestHostileImages(t *testing.T) {
	many := func() io.Reader {
		r, w := io.Pipe()
		go func() {
			tw := tar.NewWriter(w)
			for tw.WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg}) == nil {
			}
		}()
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	for name, c := range map[string]struct {
		layer io.Reader
		want  string
	}{
		"a kernel of 2 GiB":         {header(t, tar.Header{Name: "boot/vmlinuz", Typeflag: tar.TypeReg, Size: 2 << 30}), "too large"},
		"long parameters":           {header(t, tar.Header{Name: "boot/cmdline", Typeflag: tar.TypeReg, Size: 1 << 20}), "too large"},
		"a kernel that is a link":   {header(t, tar.Header{Name: "kernel", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"}), "no regular file"},
		"a kernel that is a device": {header(t, tar.Header{Name: "./kernel", Typeflag: tar.TypeChar}), "no regular file"},
		"many files":                {many(), "too large"},
		"no archive":                {strings.NewReader(strings.Repeat("x", 4096)), "read its files"},
		"no kernel":                 {archiveOf(t, map[string][]byte{"../kernel/x": nil, "etc/passwd": nil}), "it has no kernel"},
		"Oakestra's files":          {archiveOf(t, map[string][]byte{"files/x": nil, "kernel": []byte("k")}), "9p"},
	} {
		t.Run(name, func(t *testing.T) {
			im := newCache(t, maxImages)
			_, _, err := im.get("t", "x", func(x *extraction) error { return x.read(c.layer) })
			e, ok := errors.AsType[*runtime.Error](err)
			if !ok || e.Reason != api.ReasonImageBad || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want image_bad with %q", err, c.want)
			}
			if all, _ := os.ReadDir(im.dir); len(all) > 0 {
				t.Errorf("left in the directory of images: %v", all)
			}
		})
	}
}

// TestUnpackedBytesAreBounded reads a layer whose first file never ends.
func TestUnpackedBytesAreBounded(t *testing.T) {
	x := &extraction{dir: t.TempDir(), bytes: maxUnpacked - 1<<20, grow: func(int64) error { return nil }}
	err := x.read(header(t, tar.Header{Name: "usr/lib/large", Typeflag: tar.TypeReg, Size: 1 << 40}))
	if err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("got %v, want that it is too large", err)
	}
}

// TestPreferredPlaces: the first place in the list wins, whatever the order of files; a later layer
// replaces a file of an earlier one.
func TestPreferredPlaces(t *testing.T) {
	im := newCache(t, maxImages)
	fill := func(x *extraction) error {
		return errors.Join(
			x.read(archiveOf(t, map[string][]byte{"/unikraft/bin/kernel": []byte("third"), "./boot/vmlinuz": []byte("old")})),
			x.read(archiveOf(t, map[string][]byte{"kernel": []byte("second"), "boot/vmlinuz": []byte("new"), "boot/cmdline": []byte(" a=b\n")})))
	}
	dir, done, err := im.get("t", "x", fill)
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	c, err := link(dir, to)
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := os.ReadFile(filepath.Join(to, kernelFile))
	if err != nil || string(kernel) != "new" || c.Cmdline != "a=b" || c.Initrd || c.Bytes != 3 {
		t.Errorf("got kernel %q (%v) and %+v, want new, and the parameters a=b", kernel, err, c)
	}
	done()
	if _, done, err := im.get("t", "x", func(*extraction) error { return errors.New("fetched again") }); err != nil {
		t.Error(err)
	} else {
		done()
	}
	if err := im.collect(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(filepath.Join(to, kernelFile)); err != nil {
		t.Errorf("kernel of a workload after its image was removed: %v", err)
	}
}

func TestOakestraArchives(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/uk.tar.gz" {
			http.NotFound(w, r)
			return
		}
		z := gzip.NewWriter(w)
		_, _ = io.Copy(z, archiveOf(t, map[string][]byte{"kernel": []byte("k")}))
		_ = z.Close()
	}))
	defer srv.Close()
	im := images{cache: newCache(t, maxImages), client: func(string) (*http.Client, error) { return srv.Client(), nil }}
	get := func(code string, arch ...string) error {
		_, done, err := im.get(t.Context(), runtime.Workload{Key: wire.Key{Instance: "t/a.d.s.d#0"}, Spec: api.Microservice{Virtualization: api.Unikernel, Code: code, Arch: arch}})
		if err == nil {
			done()
		}
		return err
	}
	if err := get("http://other.invalid/x,"+srv.URL+"/uk.tar.gz", "arm64", "amd64"); err != nil {
		t.Error(err)
	}
	if err := get(srv.URL + "/missing.tar.gz"); err == nil || runtime.Reason(err) != api.ReasonImageNotFound {
		t.Errorf("missing archive: got %v, want image_not_found", err)
	}
	if err := get(srv.URL+"/uk.tar.gz", "arm64"); err == nil || runtime.Reason(err) != api.ReasonImageBad {
		t.Errorf("archive for another architecture: got %v, want image_bad", err)
	}
}

// TestTenantsDoNotReachQEMUsArguments: whatever a tenant writes is one argument, or in a file.
func TestTenantsDoNotReachQEMUsArguments(t *testing.T) {
	n := &interfaceOf{address: guestAddr, mac: guestMAC.String(), mtu: 1400}
	plain := machine{QEMU: "q", Accel: "tcg", Unikernel: true, MemoryMB: 64, CPUs: 1, Hostname: "h"}
	hostile := plain
	hostile.Args = []string{"-monitor", "tcp:0.0.0.0:1", "\",file=/etc/shadow", "-drive"}
	hostile.Env = []string{"A=,-netdev,user"}
	args := func(m machine) []string {
		line, err := m.cmdline(n)
		if err != nil {
			t.Fatal(err)
		}
		return m.arguments(line, true, n)
	}
	a, b := args(plain), args(hostile)
	if len(a) != len(b) || !slices.Equal(a[:len(a)-1], b[:len(b)-1]) || a[len(a)-2] != "-append" {
		t.Errorf("arguments: got %q, want those of a plain machine %q and another last one", b, a)
	}
	for name, m := range map[string]machine{
		"a control character":  {Unikernel: true, Cmdline: "a\x00-monitor"},
		"too many parameters":  {Cmdline: strings.Repeat("x", maxCmdline)},
		"too many by argument": {Unikernel: true, Args: []string{strings.Repeat("x", maxCmdline)}},
	} {
		if line, err := m.cmdline(n); err == nil {
			t.Errorf("%s: got %q, want an error", name, line)
		}
	}
	if err := checkArgs([]string{"a b"}); err == nil {
		t.Error("argument with a space: got no error")
	}
}

func TestKernelParameters(t *testing.T) {
	n := &interfaceOf{address: guestAddr, mac: guestMAC.String(), mtu: 1400}
	for name, c := range map[string]struct {
		m    machine
		n    *interfaceOf
		want string
	}{
		"Linux":               {machine{Hostname: "h"}, n, linuxCmdline + " ip=10.16.9.5::10.16.9.254:255.255.255.0:h:eth0:off:169.254.30.53"},
		"Linux, no network":   {machine{Cmdline: "a=b"}, nil, linuxCmdline + " a=b"},
		"a unikernel":         {machine{Unikernel: true, Args: []string{"-p", "80"}}, n, "netdev.ipv4_addr=10.16.9.5 netdev.ipv4_gw_addr=10.16.9.254 netdev.ipv4_subnet_mask=255.255.255.0 -- -p 80"},
		"an image's template": {machine{Unikernel: true, Cmdline: "--ipv4={address}/{prefix} --ipv4-gateway={gateway} {args}", Args: []string{"x"}}, n, "--ipv4=10.16.9.5/24 --ipv4-gateway=10.16.9.254 x"},
	} {
		if got, err := c.m.cmdline(c.n); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, c.want)
		}
	}
	p, err := json.Marshal(machine{Args: []string{"a b"}, Env: []string{"X=\"\n"}}.parameters(nil))
	if want := `{"args":["a b"],"env":["X=\"\n"],"hostname":""}`; err != nil || string(p) != want {
		t.Errorf("parameters: got %s, %v, want %s", p, err, want)
	}
}

func TestWhatAMachineCannotHave(t *testing.T) {
	for name, c := range map[string]struct {
		w    runtime.Workload
		want api.Reason
	}{
		"devices": {runtime.Workload{Devices: []string{"a/b=0"}}, api.ReasonNoDevice},
		"files":   {runtime.Workload{Files: &runtime.Files{}}, api.ReasonNoFiles},
		"memory":  {runtime.Workload{Spec: api.Microservice{Memory: 64}}, api.ReasonStartFailed},
		"input":   {runtime.Workload{Spec: api.Microservice{TTY: true}}, api.ReasonNoRuntime},
	} {
		c.w.Spec.Virtualization = api.MicroVM
		if err := check(c.w); err == nil || runtime.Reason(err) != c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}
