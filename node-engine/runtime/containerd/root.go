package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/treeline-edge/treeline/api"
)

const (
	// rootFile in the state directory has containerd's root, for a start without containerd.
	rootFile    = "root"
	defaultRoot = "/var/lib/containerd"
	rootTimeout = 2 * time.Second
)

// Root returns the directory in which containerd unpacks images: the one in cfg, the one that containerd
// exports, or if containerd does not answer the last known one or containerd's default.
func Root(ctx context.Context, cfg Config) string {
	c, err := client.New(cfg.Address)
	if err != nil {
		return root(ctx, nil, cfg)
	}
	defer c.Close()
	return root(ctx, c, cfg)
}

func root(ctx context.Context, c *client.Client, cfg Config) string {
	if cfg.Root != "" {
		return cfg.Root
	}
	file := filepath.Join(cfg.StateDir, rootFile)
	last, readErr := os.ReadFile(file)
	dir, err := exportedRoot(ctx, c, cmp.Or(cfg.Snapshotter, defaultSnapshotter))
	switch {
	case err == nil && (readErr != nil || string(last) != dir):
		// Without the file, a start without containerd uses the default.
		_ = os.MkdirAll(cfg.StateDir, 0o700)
		_ = os.WriteFile(file, []byte(dir), 0o600)
	case err != nil && filepath.IsAbs(string(last)):
		return string(last)
	case err != nil:
		return defaultRoot
	}
	return dir
}

// exportedRoot returns the directory of containerd's snapshotter.
func exportedRoot(ctx context.Context, c *client.Client, snapshotter string) (string, error) {
	if c == nil {
		return "", api.ErrUnavailable
	}
	ctx, cancel := context.WithTimeout(ctx, rootTimeout)
	defer cancel()
	resp, err := c.IntrospectionService().Plugins(ctx, fmt.Sprintf("type==io.containerd.snapshotter.v1,id==%s", snapshotter))
	if err != nil {
		return "", err
	}
	for _, p := range resp.Plugins {
		if dir := strings.TrimSpace(p.Exports["root"]); filepath.IsAbs(dir) {
			if _, err := os.Stat(dir); err == nil || !errors.Is(err, os.ErrNotExist) {
				return dir, nil
			}
		}
	}
	return "", api.ErrNotFound
}
