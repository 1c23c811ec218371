package qemu

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/durable"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

const (
	maxUnpacked   = 4 << 30  // bytes of all files of an image
	maxEntries    = 1 << 18  // files of an image
	maxFile       = 1 << 30  // bytes of a kernel or an initial file system
	maxDownload   = 1 << 30  // bytes of an archive
	maxParameters = 64 << 10 // bytes of an image's kernel parameters

	unusedFor       = 24 * time.Hour // until an image is removed
	downloadTimeout = 10 * time.Minute
)

// The names of an image's files in its directory.
const (
	kernelFile = "kernel"
	initrdFile = "initrd"
	configFile = "image.json"
)

// places are the paths of the files in images, the preferred first.
var places = map[string][]string{
	kernelFile: {"boot/vmlinuz", "kernel", "unikraft/bin/kernel"},
	initrdFile: {"boot/initrd.img", "initrd", "unikraft/bin/initrd"},
	parameters: {"boot/cmdline"},
}

const parameters = "cmdline"

// imageConfig is what an image says about its machine.
type imageConfig struct {
	Cmdline   string // a template of kernel parameters, see machine.cmdline
	Args, Env []string
	Initrd    bool
	Bytes     int64      // of both files
	Tenant    api.Tenant // the topmost one of those who fetched it
}

// images fetches and unpacks images.
type images struct {
	cache  *cache
	oci    func(ctx context.Context, w runtime.Workload) (runtime.Artifact, error) // nil: there are none
	client func(host string) (*http.Client, error)
}

// get returns the directory of a workload's image, which it fetches if necessary. The directory exists at
// least until done is called.
func (im images) get(ctx context.Context, w runtime.Workload) (dir string, done func(), err error) {
	if strings.Contains(w.Spec.Code, "://") {
		return im.archive(ctx, w)
	}
	if im.oci == nil {
		return "", nil, runtime.Errorf(api.ReasonNoRuntime, "image %q: images of registries need containerd among the node's runtimes", w.Spec.Code)
	}
	a, err := im.oci(ctx, w)
	if err != nil {
		return "", nil, err
	}
	return im.cache.get(w.Instance.Tenant().Top(), a.Digest, func(x *extraction) error {
		x.config.Args, x.config.Env = a.Args, a.Env
		return a.Layers(ctx, x.read)
	})
}

// archive fetches an archive in Oakestra's layout: one of the list in code, by the position of this
// machine's architecture in arch.
func (im images) archive(ctx context.Context, w runtime.Workload) (dir string, done func(), err error) {
	from, err := archiveURL(w.Spec, goruntime.GOARCH)
	if err != nil {
		return "", nil, runtime.Errorf(api.ReasonImageBad, "%w", err)
	}
	return im.cache.get(w.Instance.Tenant().Top(), from.String(), func(x *extraction) error {
		ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
		defer cancel()
		c, err := im.client(from.Hostname())
		if err != nil {
			return err
		}
		defer c.CloseIdleConnections()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, from.String(), nil)
		if err != nil {
			return err
		}
		resp, err := c.Do(req)
		if err != nil {
			return runtime.Errorf(api.ReasonRegistryDown, "fetch %s: the server cannot be reached, or lies in a network from which this node fetches nothing (its operator can list it in containerd.registry_networks): %w", from.Redacted(), err)
		}
		defer resp.Body.Close()
		switch {
		case resp.StatusCode == http.StatusNotFound:
			return runtime.Errorf(api.ReasonImageNotFound, "fetch %s: %s", from.Redacted(), resp.Status)
		case resp.StatusCode != http.StatusOK:
			return runtime.Errorf(api.ReasonRegistryDown, "fetch %s: %s", from.Redacted(), resp.Status)
		}
		plain, err := gzip.NewReader(io.LimitReader(resp.Body, maxDownload))
		if err != nil {
			return runtime.Errorf(api.ReasonImageBad, "read %s: %w", from.Redacted(), err)
		}
		defer plain.Close()
		return x.read(plain)
	})
}

// archiveURL returns the archive for an architecture.
func archiveURL(m api.Microservice, arch string) (*url.URL, error) {
	all := strings.Split(m.Code, ",")
	if len(all) != max(len(m.Arch), 1) {
		return nil, fmt.Errorf("code has %d URLs for %d architectures in arch", len(all), len(m.Arch))
	}
	for i, text := range all {
		if len(m.Arch) > 0 && m.Arch[i] != arch {
			continue
		}
		u, err := url.Parse(strings.TrimSpace(text))
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return nil, fmt.Errorf("code %q is no URL of an archive", text)
		}
		return u, nil
	}
	return nil, fmt.Errorf("code has no archive for %s", arch)
}

// link gives a workload's directory the files of an image, which outlive the image.
func link(image, dir string) (c imageConfig, err error) {
	text, err := os.ReadFile(filepath.Join(image, configFile))
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil {
		err = os.Link(filepath.Join(image, kernelFile), filepath.Join(dir, kernelFile))
	}
	if err == nil && c.Initrd {
		err = os.Link(filepath.Join(image, initrdFile), filepath.Join(dir, initrdFile))
	}
	return c, err
}

// extraction extracts the files of a machine from the layers of an image. It writes to fixed names only,
// so that the names in an archive cannot lead anywhere.
type extraction struct {
	dir     string
	config  imageConfig
	rank    map[string]int // of the place where a file was found
	sizes   map[string]int64
	entries int
	bytes   int64
	grow    func(total int64) error // makes room for the files
}

// errTooLarge is an error about an image that is larger than any machine needs.
var errTooLarge = errors.New("it is too large")

// read reads one layer.
func (x *extraction) read(layer io.Reader) error {
	limited := &io.LimitedReader{R: layer, N: maxUnpacked - x.bytes}
	tr := tar.NewReader(limited)
	for {
		h, err := tr.Next()
		if limited.N <= 0 {
			return runtime.Errorf(api.ReasonImageBad, "%w: more than %d MiB unpacked", errTooLarge, int64(maxUnpacked)>>20)
		}
		if errors.Is(err, io.EOF) {
			x.bytes = maxUnpacked - limited.N
			return nil
		}
		if err != nil {
			return runtime.Errorf(api.ReasonImageBad, "read its files: %w", err)
		}
		if x.entries++; x.entries > maxEntries {
			return runtime.Errorf(api.ReasonImageBad, "%w: more than %d files", errTooLarge, maxEntries)
		}
		if err := x.file(h, tr); err != nil {
			return err
		}
	}
}

func (x *extraction) file(h *tar.Header, from io.Reader) error {
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if strings.HasPrefix(name, "files/") && x.oakestra() {
		return runtime.Errorf(api.ReasonImageBad, "it has the directory files, which unikernels mount by 9p; this is not supported: build the files into the kernel or an initrd")
	}
	for to, all := range places {
		rank := -1
		for i, p := range all {
			if p == name {
				rank = i
			}
		}
		if had, ok := x.rank[to]; rank < 0 || ok && had < rank {
			continue
		}
		if h.Typeflag != tar.TypeReg {
			return runtime.Errorf(api.ReasonImageBad, "%s is no regular file", name)
		}
		limit := int64(maxFile)
		if to == parameters {
			limit = maxParameters
		}
		if h.Size > limit {
			return runtime.Errorf(api.ReasonImageBad, "%w: %s has %d bytes, at most %d", errTooLarge, name, h.Size, limit)
		}
		x.rank[to] = rank
		if to == parameters {
			var text bytes.Buffer
			_, err := text.ReadFrom(from)
			x.config.Cmdline = strings.TrimSpace(text.String())
			return err
		}
		if err := x.grow(x.config.Bytes - x.sizes[to] + h.Size); err != nil {
			return err
		}
		x.config.Initrd = x.config.Initrd || to == initrdFile
		x.sizes[to] = h.Size
		x.config.Bytes = x.sizes[kernelFile] + x.sizes[initrdFile]
		return write(filepath.Join(x.dir, to), from)
	}
	return nil
}

// finish completes the directory.
func (x *extraction) finish() error {
	if _, ok := x.rank[kernelFile]; !ok {
		return runtime.Errorf(api.ReasonImageBad, "it has no kernel, want a file %s", strings.Join(places[kernelFile], " or "))
	}
	return durable.WriteJSON(x.dir, configFile, x.config)
}

// oakestra reports whether the archive has the layout of Oakestra: no configuration, and a kernel at its
// top.
func (x *extraction) oakestra() bool { return x.config.Args == nil && x.config.Env == nil }

// write writes a file that everybody may read: QEMU opens it by a descriptor.
func write(to string, from io.Reader) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o444)
	if err != nil {
		return err
	}
	if _, err = io.Copy(f, from); err == nil {
		err = f.Sync() // an image that is incomplete after a power cut would never be fetched again
	}
	return errors.Join(err, f.Close())
}
