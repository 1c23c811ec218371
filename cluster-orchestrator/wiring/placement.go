package wiring

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/scheduler-plugins/choice"
	"github.com/treeline-edge/treeline/scheduler-plugins/outside"
)

// OfferConfig is what the root may use of the cluster, and know of it.
type OfferConfig struct {
	Share  float64 `yaml:"share" usage:"the part of the nodes' capacity that the root may use, above 0 to 1"`
	Detail string  `yaml:"detail" usage:"how much the root is told: full, slots (the largest room of each kind of node, not where they are), or sums"`
	Round  float64 `yaml:"round" usage:"tell amounts in steps of this part of a mean node, and places in whole degrees; 0: exactly"`
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
	if details := []string{cluster.DetailFull, cluster.DetailSlots, cluster.DetailSums}; !slices.Contains(details, c.Offer.Detail) {
		return bad("offer.detail", "%q is none of %s", c.Offer.Detail, strings.Join(details, ", "))
	}
	if c.Offer.Round < 0 || c.Offer.Round >= 1 {
		return bad("offer.round", "%g is not from 0 to below 1", c.Offer.Round)
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

// networks reads a setting that lists networks.
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

// placement adds to the core's configuration what the operator says of placing.
func (c Config) placement(conf *cluster.Config, info api.ClusterInfo, out *outside.Scheduler) {
	conf.Plugin = choice.BuiltIn(c.Scheduler) // of a scheduler outside rom takes the place where it fails
	if out != nil {
		conf.Asks = out.Name()
	}
	if g, err := api.ParseGeo(info.Location); err == nil {
		conf.Location = &g
	}
	conf.Offer = cluster.Offer{Share: c.Offer.Share, Detail: c.Offer.Detail, Round: c.Offer.Round}
	conf.Probe.Off = c.Probe.Off
	conf.Probe.Allow, _ = networks("", c.Probe.Allow) // validated
	conf.Probe.Deny, _ = networks("", c.Probe.Deny)
	conf.Preempt = c.Preempt
	if conf.MovesPerHour = c.MovesPerHour; c.MovesPerHour == 0 {
		conf.MovesPerHour = -1
	}
}

// tell writes down what the core wants its operator to know.
func tell(log *slog.Logger, msg any) {
	if n, ok := msg.(api.Notice); ok {
		log.Warn(n.Text, "times", n.Times)
	}
}
