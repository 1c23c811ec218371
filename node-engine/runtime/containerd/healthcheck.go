package containerd

import (
	"context"
	"encoding/json"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"

	"github.com/treeline-edge/treeline/api"
)

// maxImageConfig bounds the configuration of an image that is searched for a HEALTHCHECK.
const maxImageConfig = 1 << 20

// healthcheck returns the HEALTHCHECK of an image, nil if it has none that can be run.
func healthcheck(ctx context.Context, img client.Image) (*api.Health, error) {
	desc, err := img.Config(ctx)
	if err != nil || desc.Size > maxImageConfig {
		return nil, err
	}
	b, err := content.ReadBlob(ctx, img.ContentStore(), desc)
	if err != nil {
		return nil, err
	}
	return parseHealthcheck(b), nil
}

// imageConfig is the part of an image's configuration that Docker adds to the OCI format.
type imageConfig struct {
	Config struct {
		Healthcheck *struct {
			Test                           []string
			Interval, Timeout, StartPeriod time.Duration
			Retries                        int
		}
	} `json:"config"`
}

// Docker's defaults.
const (
	dockerInterval = 30 * time.Second
	dockerTimeout  = 30 * time.Second
	dockerRetries  = 3
)

// maxArgument is the longest argument of a health check, as for those of SLAs.
const maxArgument = 4096

// parseHealthcheck returns the checks that mean the same as the HEALTHCHECK in an image's
// configuration: until it has passed for the first time within its start period and retries, the
// instance is starting, and afterwards it is restarted when it fails. Values out of bounds are
// replaced by the nearest ones.
func parseHealthcheck(config []byte) *api.Health {
	var c imageConfig
	if json.Unmarshal(config, &c) != nil || c.Config.Healthcheck == nil || len(c.Config.Healthcheck.Test) < 2 {
		return nil
	}
	h := c.Config.Healthcheck
	var command []string
	switch args := h.Test[1:]; h.Test[0] {
	case "CMD":
		command = args
	case "CMD-SHELL":
		command = []string{"/bin/sh", "-c", args[0]}
	}
	if len(command) == 0 || len(command) > api.MaxCheckCommand {
		return nil // NONE, or a form of a later release
	}
	for _, a := range command {
		if len(a) > maxArgument {
			return nil
		}
	}
	live := api.Check{
		Command:  command,
		Interval: seconds(h.Interval, dockerInterval, api.MinCommandInterval, api.MaxCheckInterval),
		Timeout:  seconds(h.Timeout, dockerTimeout, 1, api.MaxCheckTimeout),
		Failures: dockerRetries,
	}
	if h.Retries > 0 {
		live.Failures = min(h.Retries, api.MaxCheckFailures)
	}
	start := live
	start.Failures = min(live.Failures+seconds(h.StartPeriod, 0, 0, api.MaxCheckDelay)/live.Interval, api.MaxCheckFailures)
	return &api.Health{Startup: &start, Liveness: &live}
}

// seconds returns d, or its default if it is not positive, in whole seconds between bounds.
func seconds(d, otherwise time.Duration, least, most int) int {
	if d <= 0 {
		d = otherwise
	}
	return min(max(int((d+time.Second-1)/time.Second), least), most)
}
