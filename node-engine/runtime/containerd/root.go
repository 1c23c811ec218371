package containerd

import (
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
	// rootFile remembers in the state directory where containerd's files are, for
	// a start without containerd.
	rootFile = "root"
	// defaultRoot is containerd's own default.
	defaultRoot = "/var/lib/containerd"
	// rootTime bounds the question for it.
	rootTime = 2 * time.Second
)

// Root returns the directory in which containerd unpacks images: the one in cfg, or the
// one that containerd exports. While containerd does not answer it is the last known one,
// and without one containerd's default.
func Root(ctx context.Context, cfg Config) string {
	c, err := client.New(cfg.Address)
	if err != nil {
		return remembered(cfg)
	}
	defer c.Close()
	return root(ctx, c, cfg)
}

func root(ctx context.Context, c *client.Client, cfg Config) string {
	if cfg.ContainerdRoot != "" {
		return cfg.ContainerdRoot
	}
	ctx, cancel := context.WithTimeout(ctx, rootTime)
	defer cancel()
	dir, err := exportedRoot(ctx, c, cfg.Snapshotter)
	if err != nil {
		return remembered(cfg)
	}
	if old, err := os.ReadFile(filepath.Join(cfg.StateDir, rootFile)); err != nil || string(old) != dir {
		if err := os.MkdirAll(cfg.StateDir, 0o700); err == nil {
			// Without the file, a start without containerd uses the default.
			_ = os.WriteFile(filepath.Join(cfg.StateDir, rootFile), []byte(dir), 0o600)
		}
	}
	return dir
}

func remembered(cfg Config) string {
	if cfg.ContainerdRoot != "" {
		return cfg.ContainerdRoot
	}
	if dir, err := os.ReadFile(filepath.Join(cfg.StateDir, rootFile)); err == nil && filepath.IsAbs(string(dir)) {
		return string(dir)
	}
	return defaultRoot
}

// exportedRoot asks containerd where its snapshotter keeps files.
func exportedRoot(ctx context.Context, c *client.Client, snapshotter string) (string, error) {
	if snapshotter == "" {
		snapshotter = defaultSnapshotter
	}
	resp, err := c.IntrospectionService().Plugins(ctx, fmt.Sprintf("type==io.containerd.snapshotter.v1,id==%s", snapshotter))
	if err != nil {
		return "", fmt.Errorf("ask containerd where snapshotter %s keeps files: %w", snapshotter, err)
	}
	for _, p := range resp.Plugins {
		if dir := strings.TrimSpace(p.Exports["root"]); filepath.IsAbs(dir) {
			if _, err := os.Stat(dir); err == nil || !errors.Is(err, os.ErrNotExist) {
				return dir, nil
			}
		}
	}
	return "", fmt.Errorf("snapshotter %s exports no root directory: %w", snapshotter, api.ErrNotFound)
}
