package wiring

import (
	"cmp"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/scheduler-plugins/choice"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/client"
)

// OfferConfig configures the capacity that the root may use and the detail that it receives.
type OfferConfig struct {
	Share  float64 `yaml:"share" usage:"the fraction of the nodes' capacity that the root may use, above 0 to 1"`
	Detail string  `yaml:"detail" usage:"what the root receives: full, slots (the largest slot of each kind of node, without locations), or sums"`
	Round  float64 `yaml:"round" usage:"round reported amounts to steps of this fraction of a mean node, and locations to whole degrees; 0: exact"`
}

// WorkloadConfig has the defaults for SLAs that set no memory or vcpus, and the maxima that an
// SLA may set.
type WorkloadConfig struct {
	Memory      int64   `yaml:"memory" usage:"MiB that are reserved for an instance whose SLA sets no memory"`
	VCPUs       float64 `yaml:"vcpus" usage:"vCPUs that are reserved for an instance whose SLA sets no vcpus"`
	MemoryLimit int64   `yaml:"memory_limit" usage:"MiB at which an instance is killed whose SLA sets no memory; at least memory"`
	VCPUsLimit  float64 `yaml:"vcpus_limit" usage:"maximum vCPUs of an instance whose SLA sets no vcpus; at least vcpus"`
	MaxMemory   int64   `yaml:"max_memory" usage:"maximum MiB that an SLA may set; 0: what a node has"`
	MaxVCPUs    float64 `yaml:"max_vcpus" usage:"maximum vCPUs that an SLA may set; 0: what a node has"`
}

func (w WorkloadConfig) validate() error {
	const maxMemory, maxVCPUs = 1 << 27, 8192
	return cmp.Or(
		inRange("workload.memory", float64(w.Memory), 1, maxMemory),
		inRange("workload.memory_limit", float64(w.MemoryLimit), float64(w.Memory), maxMemory),
		inRange("workload.vcpus", w.VCPUs, 0.001, maxVCPUs),
		inRange("workload.vcpus_limit", w.VCPUsLimit, w.VCPUs, maxVCPUs),
		inRange("workload.max_memory", float64(w.MaxMemory), 0, maxMemory),
		inRange("workload.max_vcpus", w.MaxVCPUs, 0, maxVCPUs),
	)
}

// inRange returns ErrInvalid unless low ≤ value ≤ high. NaN is in no range.
func inRange(key string, value, low, high float64) error {
	if value >= low && value <= high {
		return nil
	}
	return daemon.Invalid(key, "%.15g, want %.15g to %.15g", value, low, high)
}

func (w WorkloadConfig) core() placement.Workload {
	milli := func(vcpus float64) int64 { return int64(vcpus*1000 + 0.5) }
	return placement.Workload{
		Reserve: api.Resources{MilliCPU: milli(w.VCPUs), MemoryMB: w.Memory},
		Limit:   api.Resources{MilliCPU: milli(w.VCPUsLimit), MemoryMB: w.MemoryLimit},
		Max:     api.Resources{MilliCPU: milli(w.MaxVCPUs), MemoryMB: w.MaxMemory},
	}
}

// ProbeConfig is the policy on probing the users that SLAs name.
type ProbeConfig struct {
	Off   bool     `yaml:"off" usage:"probe no users; latency constraints to users then cannot be met"`
	Allow []string `yaml:"allow" usage:"networks (10.1.0.0/16, …) that may be probed although they are not public"`
	Deny  []string `yaml:"deny" usage:"networks that may not be probed, public ones included"`
}

func (c Config) validatePlacement() error {
	if c.Offer.Share <= 0 || c.Offer.Share > 1 {
		return daemon.Invalid("offer.share", "%g, want above 0 and at most 1", c.Offer.Share)
	}
	if details := []string{uplink.DetailFull, uplink.DetailSlots, uplink.DetailSums}; !slices.Contains(details, c.Offer.Detail) {
		return daemon.Invalid("offer.detail", "%q is not one of %s", c.Offer.Detail, strings.Join(details, ", "))
	}
	if c.Offer.Round < 0 || c.Offer.Round >= 1 {
		return daemon.Invalid("offer.round", "%g, want at least 0 and below 1", c.Offer.Round)
	}
	for key, list := range map[string][]string{"probe.allow": c.Probe.Allow, "probe.deny": c.Probe.Deny} {
		if _, err := daemon.Networks(key, list); err != nil {
			return err
		}
	}
	return cmp.Or(
		choice.Validate(c.Scheduler), c.Workload.validate(), c.NodeCaps.validate(), inRange("moves_per_hour", float64(c.MovesPerHour), 0, 60),
	)
}

// placement sets the placement part of the core's configuration.
func (c Config) placement(conf *cluster.Config, info api.ClusterInfo, out *client.Scheduler) {
	conf.Plugin = choice.BuiltIn(c.Scheduler) // nil for an external scheduler, which falls back to rom
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
	conf.Probe.Allow, _ = daemon.Networks("", c.Probe.Allow) // validated
	conf.Probe.Deny, _ = daemon.Networks("", c.Probe.Deny)
	conf.Preempt = c.Preempt
	if conf.MovesPerHour = c.MovesPerHour; c.MovesPerHour == 0 {
		conf.MovesPerHour = -1
	}
}
