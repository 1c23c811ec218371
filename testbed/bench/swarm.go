package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
)

// swarmOrder describes a swarm: complete node engines in one process, with fake runtimes.
type swarmOrder struct {
	Dir    string  `json:"dir"`
	Token  string  `json:"token"`
	Nodes  int     `json:"nodes"`
	AtOnce int     `json:"at_once"`          // concurrent joins
	CPUs   float64 `json:"cpus,omitempty"`   // of each; 0: 4
	Memory int64   `json:"memory,omitempty"` // MiB; 0: 4096

	Namespaces bool `json:"namespaces,omitempty"` // workloads have a network namespace, see inNamespaces
}

// swarm is the process of a swarm: this program, started by the benchmark cluster. It ends when
// its standard input is closed.
func swarm(ctx context.Context, text string) error {
	if order, ok := strings.CutPrefix(text, bareOrder); ok {
		return runBare(ctx, order)
	}
	var o swarmOrder
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return fmt.Errorf("read the swarm's order: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	joining := make(chan struct{}, o.AtOnce)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	var wg sync.WaitGroup
	for i := range o.Nodes {
		cfg := node.Defaults()
		cfg.Name, cfg.Token = fmt.Sprintf("sim-%d", i), daemon.Secret(o.Token)
		cfg.Data, cfg.ListenStatus = filepath.Join(o.Dir, cfg.Name), "off"
		cfg.CPUs, cfg.Memory, cfg.Fake = cmp.Or(o.CPUs, 4), cmp.Or(o.Memory, 4096), newPretender()
		if o.Namespaces {
			cfg.Fake = inNamespaces{newPretender()}
		}
		wg.Go(func() {
			select {
			case joining <- struct{}{}:
			case <-ctx.Done():
				return
			}
			_, err := node.Join(ctx, cfg, log)
			<-joining
			if err == nil {
				err = node.Run(ctx, cfg, log)
			}
			if err != nil && ctx.Err() == nil {
				log.Error("a simulated node ended", "node", cfg.Name, "err", err)
			}
		})
	}
	wg.Wait()
	return nil
}

// pretender is a fake runtime. It runs nothing, and reports workloads as running.
type pretender struct {
	mu   sync.Mutex // guards have
	have map[wire.Key]runtime.Status
}

var _ runtime.Runtime = (*pretender)(nil)

// inNamespaces is a pretender whose workloads share the network namespace of this process. Its users enter it as
// they enter that of a container.
type inNamespaces struct{ *pretender }

var _ runtime.Namespaced = inNamespaces{}

func (p inNamespaces) Namespace(_ context.Context, k wire.Key) (string, runtime.Workload, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.have[k]
	if !ok {
		return "", runtime.Workload{}, fmt.Errorf("workload %s: %w", k, api.ErrNotFound)
	}
	return fmt.Sprintf("/proc/%d/ns/net", os.Getpid()), runtime.Workload{Key: s.Key, Attempt: s.Attempt, Spec: s.Spec}, nil
}

func newPretender() *pretender { return &pretender{have: map[wire.Key]runtime.Status{}} }

func (p *pretender) set(k wire.Key, fn func(*runtime.Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.have[k]
	fn(&s)
	p.have[k] = s
}

// Info implements runtime.Runtime, as do the methods below.
func (p *pretender) Info(context.Context) (runtime.Info, error) {
	return runtime.Info{Version: "pretended", Runtimes: []string{"container"}}, nil
}

func (p *pretender) Create(_ context.Context, w runtime.Workload) error {
	p.set(w.Key, func(s *runtime.Status) {
		*s = runtime.Status{Key: w.Key, Attempt: w.Attempt, Phase: wire.WorkloadCreated, Spec: w.Spec}
	})
	return nil
}

func (p *pretender) Start(_ context.Context, k wire.Key) error {
	p.set(k, func(s *runtime.Status) { s.Phase = wire.WorkloadRunning })
	return nil
}

func (p *pretender) Stop(_ context.Context, k wire.Key, _ time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.have, k)
	return nil
}

func (p *pretender) Kill(_ context.Context, k wire.Key, _ time.Duration) error {
	p.set(k, func(s *runtime.Status) { s.Phase = wire.WorkloadExited })
	return nil
}

func (p *pretender) List(context.Context) ([]runtime.Status, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []runtime.Status
	for _, s := range p.have {
		out = append(out, s)
	}
	return out, nil
}

func (p *pretender) Watch(ctx context.Context, _ chan<- runtime.Exit) error {
	<-ctx.Done()
	return ctx.Err()
}

func (p *pretender) Logs(context.Context, wire.Key, int, bool) (io.ReadCloser, error) {
	return nil, fmt.Errorf("workload has no logs: %w", api.ErrNotFound)
}

func (p *pretender) Close() error { return nil }
