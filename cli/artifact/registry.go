package artifact

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/treeline-edge/treeline/api"
)

// Registry reads and writes artifacts in registries. It uses the accounts that docker login has saved as text in
// config.json; credential helpers are not called.
type Registry struct {
	PlainHTTP bool          // without TLS
	Timeout   time.Duration // of a pull or push; default 2 min
}

// Pull reads an artifact. It returns where it is, with its digest.
func (r Registry) Pull(ctx context.Context, ref string) (a Artifact, at string, err error) {
	ctx, cancel := r.deadline(ctx)
	defer cancel()
	name, err := parseRef(ref)
	if err != nil {
		return a, "", err
	}
	resolver := r.resolver()
	_, desc, err := resolver.Resolve(ctx, name.String())
	if err != nil {
		return a, "", failed("find", ref, err)
	}
	if desc.Digest.Validate() != nil || desc.Digest.Algorithm() != digest.SHA256 || desc.Size < 2 || desc.Size > maxManifest {
		return a, "", fmt.Errorf("find %s: manifest %.100q of %d bytes: want a sha256 digest and at most %d bytes: %w", ref, desc.Digest, desc.Size, maxManifest, api.ErrInvalid)
	}
	fetcher, err := resolver.Fetcher(ctx, name.String())
	if err != nil {
		return a, "", failed("read", ref, err)
	}
	manifest, err := fetch(ctx, fetcher, desc)
	if err != nil {
		return a, "", failed("read", ref, err)
	}
	l, err := layerOf(manifest)
	if err != nil {
		return a, "", fmt.Errorf("%s: %w", ref, err)
	}
	layer, err := fetch(ctx, fetcher, l)
	if err != nil {
		return a, "", failed("read", ref, err)
	}
	if a, err = parse(manifest, layer); err != nil {
		return a, "", fmt.Errorf("%s: %w", ref, err)
	}
	return a, pinned(name, desc.Digest), nil
}

func fetch(ctx context.Context, f remotes.Fetcher, d ocispec.Descriptor) ([]byte, error) {
	d.URLs = nil // a manifest must not send the client elsewhere
	body, err := f.Fetch(ctx, d)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return read(body, d)
}

// Push writes an artifact. It returns where it is, with its digest.
func (r Registry) Push(ctx context.Context, ref string, a Artifact) (at string, err error) {
	ctx, cancel := r.deadline(ctx)
	defer cancel()
	name, err := parseRef(ref)
	if err != nil {
		return "", err
	}
	pusher, err := r.resolver().Pusher(ctx, name.String())
	if err != nil {
		return "", failed("write", ref, err)
	}
	for _, b := range []struct {
		mediaType string
		data      []byte
	}{
		{api.AddonMediaType, a.Layer}, {ocispec.MediaTypeEmptyJSON, ocispec.DescriptorEmptyJSON.Data}, {ocispec.MediaTypeImageManifest, a.Manifest},
	} {
		d := ocispec.Descriptor{MediaType: b.mediaType, Digest: digest.FromBytes(b.data), Size: int64(len(b.data))}
		if err := push(ctx, pusher, d, b.data); err != nil {
			return "", failed("write", ref, err)
		}
	}
	return pinned(name, a.Digest()), nil
}

func push(ctx context.Context, p remotes.Pusher, d ocispec.Descriptor, data []byte) error {
	w, err := p.Push(ctx, d)
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := io.Copy(w, bytes.NewReader(data)); err != nil {
		return err
	}
	if err := w.Commit(ctx, d.Size, d.Digest); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return nil
}

func (r Registry) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	_ = log.SetLevel("error") // the library logs what it returns as errors
	t := r.Timeout
	if t == 0 {
		t = 2 * time.Minute
	}
	return context.WithTimeout(ctx, t)
}

// parseRef reads HOST/NAME:TAG or HOST/NAME@DIGEST. Without a host it is Docker Hub's; without a tag, latest.
func parseRef(ref string) (reference.Named, error) {
	name, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, fmt.Errorf("%q is not a file, a directory or a reference such as registry.example.org/addons/mqtt:1.0.0: %w: %w", ref, err, api.ErrInvalid)
	}
	return name, nil
}

func pinned(name reference.Named, d digest.Digest) string {
	text := reference.FamiliarName(name)
	if t, ok := name.(reference.Tagged); ok {
		text += ":" + t.Tag()
	}
	return text + "@" + d.String()
}

func failed(verb, ref string, err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("the registry does not answer: %w: %w", err, api.ErrTimeout)
	case errdefs.IsNotFound(err):
		err = fmt.Errorf("%w: %w", err, api.ErrNotFound)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		err = fmt.Errorf("%w; the registry has no TLS: --plain-http allows that", err)
	}
	return fmt.Errorf("%s %s: %w", verb, ref, err)
}

func (r Registry) resolver() remotes.Resolver {
	c := &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second, IdleConnTimeout: time.Second, MaxResponseHeaderBytes: 64 << 10,
	}}
	auth := docker.NewDockerAuthorizer(docker.WithAuthClient(c), docker.WithAuthCreds(credentials))
	return docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithClient(c), docker.WithAuthorizer(auth), docker.WithPlainHTTP(func(string) (bool, error) { return r.PlainHTTP, nil }),
	)})
}

// credentials returns the account at a registry of the file that docker login writes, "" for none.
func credentials(host string) (user, password string, err error) {
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", "", nil //nolint:nilerr // without a home there is no account
		}
		dir = filepath.Join(home, ".docker")
	}
	file := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	var config struct {
		Auths map[string]struct {
			Auth string `json:"auth"`
		} `json:"auths"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return "", "", fmt.Errorf("read %s: %w", file, err)
	}
	if host == "registry-1.docker.io" {
		host = "https://index.docker.io/v1/"
	}
	plain, err := base64.StdEncoding.DecodeString(config.Auths[host].Auth)
	if err != nil {
		return "", "", fmt.Errorf("read %s: auth of %s: %w", file, host, err)
	}
	user, password, _ = strings.Cut(string(plain), ":")
	return user, password, nil
}
