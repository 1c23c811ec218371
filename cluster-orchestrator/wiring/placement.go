package wiring

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/choice"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/client"
)

// OfferConfig is how much of the cluster the root may use and know.
type OfferConfig struct {
	Share  float64 `yaml:"share" usage:"the part of the nodes' capacity that the root may use, above 0 to 1"`
	Detail string  `yaml:"detail" usage:"how much the root is told: full, slots (the largest room of each kind of node, not where they are), or sums"`
	Round  float64 `yaml:"round" usage:"tell amounts in steps of this part of a mean node, and places in whole degrees; 0: exactly"`
}

// WorkloadConfig has the defaults of an instance whose SLA names no memory or vcpus, and
// the most that an SLA may name.
type WorkloadConfig struct {
	Memory      int64   `yaml:"memory" usage:"MiB that are reserved for an instance whose SLA names no memory"`
	VCPUs       float64 `yaml:"vcpus" usage:"vCPUs that are reserved for an instance whose SLA names no vcpus"`
	MemoryLimit int64   `yaml:"memory_limit" usage:"MiB at which an instance is ended whose SLA names no memory; at least memory"`
	VCPUsLimit  float64 `yaml:"vcpus_limit" usage:"the most vCPUs of an instance whose SLA names no vcpus; at least vcpus"`
	MaxMemory   int64   `yaml:"max_memory" usage:"the most MiB that an SLA may name; 0: what a node has"`
	MaxVCPUs    float64 `yaml:"max_vcpus" usage:"the most vCPUs that an SLA may name; 0: what a node has"`
}

func (w WorkloadConfig) validate() error {
	bad := func(key, format string, args ...any) error {
		return fmt.Errorf("workload.%s: %s: %w", key, fmt.Sprintf(format, args...), api.ErrInvalid)
	}
	const mostMemory, mostVCPUs = 1 << 27, 8192
	switch {
	case w.Memory < 1 || w.Memory > mostMemory:
		return bad("memory", "%d, want 1 to %d MiB", w.Memory, mostMemory)
	case w.MemoryLimit < w.Memory || w.MemoryLimit > mostMemory:
		return bad("memory_limit", "%d, want %d (workload.memory) to %d MiB", w.MemoryLimit, w.Memory, mostMemory)
	case !(w.VCPUs >= 0.001 && w.VCPUs <= mostVCPUs):
		return bad("vcpus", "%g, want 0.001 to %d", w.VCPUs, mostVCPUs)
	case !(w.VCPUsLimit >= w.VCPUs && w.VCPUsLimit <= mostVCPUs):
		return bad("vcpus_limit", "%g, want %g (workload.vcpus) to %d", w.VCPUsLimit, w.VCPUs, mostVCPUs)
	case w.MaxMemory < 0 || w.MaxMemory > mostMemory:
		return bad("max_memory", "%d, want 0 to %d MiB", w.MaxMemory, mostMemory)
	case !(w.MaxVCPUs >= 0 && w.MaxVCPUs <= mostVCPUs):
		return bad("max_vcpus", "%g, want 0 to %d", w.MaxVCPUs, mostVCPUs)
	}
	return nil
}

func (w WorkloadConfig) core() placement.Workload {
	milli := func(vcpus float64) int64 { return int64(vcpus*1000 + 0.5) }
	return placement.Workload{
		Reserve: api.Resources{MilliCPU: milli(w.VCPUs), MemoryMB: w.Memory},
		Limit:   api.Resources{MilliCPU: milli(w.VCPUsLimit), MemoryMB: w.MemoryLimit},
		Most:    api.Resources{MilliCPU: milli(w.MaxVCPUs), MemoryMB: w.MaxMemory},
	}
}

// ProbeConfig is the policy on probing the users that SLAs name.
type ProbeConfig struct {
	Off   bool     `yaml:"off" usage:"have nobody probed; then no latency to a user can be kept"`
	Allow []string `yaml:"allow" usage:"networks (10.1.0.0/16, …) that may be probed although they are not public"`
	Deny  []string `yaml:"deny" usage:"networks that may not be probed, public or not"`
}

func (c Config) validatePlacement() error {
	bad := func(key, format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", key, fmt.Sprintf(format, args...), api.ErrInvalid)
	}
	if err := choice.Validate(c.Scheduler); err != nil {
		return err
	}
	if c.Offer.Share <= 0 || c.Offer.Share > 1 {
		return bad("offer.share", "%g is not above 0 and at most 1", c.Offer.Share)
	}
	if details := []string{uplink.DetailFull, uplink.DetailSlots, uplink.DetailSums}; !slices.Contains(details, c.Offer.Detail) {
		return bad("offer.detail", "%q is none of %s", c.Offer.Detail, strings.Join(details, ", "))
	}
	if c.Offer.Round < 0 || c.Offer.Round >= 1 {
		return bad("offer.round", "%g is not from 0 to below 1", c.Offer.Round)
	}
	if err := c.Workload.validate(); err != nil {
		return err
	}
	if err := c.NodeCaps.validate(); err != nil {
		return err
	}
	if c.MovesPerHour < 0 || c.MovesPerHour > 60 {
		return bad("moves_per_hour", "%d, want 0 to 60", c.MovesPerHour)
	}
	for key, list := range map[string][]string{"probe.allow": c.Probe.Allow, "probe.deny": c.Probe.Deny} {
		if _, err := networks(key, list); err != nil {
			return err
		}
	}
	return nil
}

// networks parses a list of networks.
func networks(key string, list []string) (out []netip.Prefix, err error) {
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("%s: %q is no network such as 10.1.0.0/16: %w", key, text, api.ErrInvalid)
		}
		out = append(out, p)
	}
	return out, nil
}

// placement sets the placement part of the core's configuration.
func (c Config) placement(conf *cluster.Config, info api.ClusterInfo, out *client.Scheduler) {
	conf.Plugin = choice.BuiltIn(c.Scheduler) // rom where an external scheduler fails
	if out != nil {
		conf.Asks = out.Name()
	}
	if g, err := api.ParseGeo(info.Location); err == nil {
		conf.Location = &g
	}
	conf.Offer = uplink.Offer{Share: c.Offer.Share, Detail: c.Offer.Detail, Round: c.Offer.Round}
	conf.Workload = c.Workload.core()
	conf.Caps = c.NodeCaps.core()
	conf.Probe.Off = c.Probe.Off
	conf.Probe.Allow, _ = networks("", c.Probe.Allow) // validated
	conf.Probe.Deny, _ = networks("", c.Probe.Deny)
	conf.Preempt = c.Preempt
	if conf.MovesPerHour = c.MovesPerHour; c.MovesPerHour == 0 {
		conf.MovesPerHour = -1
	}
}

// tell logs a notice of the core for the operator.
func tell(log *slog.Logger, msg any) {
	if n, ok := msg.(wire.Notice); ok {
		log.Warn(n.Text, "times", n.Times)
	}
}
