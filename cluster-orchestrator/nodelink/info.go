package nodelink

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity"
)

// The most that a node may say of itself: it is kept, and every decision looks at it.
const (
	maxWords   = 64   // labels, runtimes, addons, areas, kinds of one device
	maxDevices = 1024 // pieces
	maxWord    = 256  // bytes of each
)

// checked refuses what a node may not say of itself (ErrInvalid).
func checked(info api.NodeInfo) (api.NodeInfo, error) {
	bad := func(format string, args ...any) (api.NodeInfo, error) {
		return info, fmt.Errorf(format+": %w", append(args, api.ErrInvalid)...)
	}
	if info.ID != "" && (!api.ValidMachineName(string(info.ID)) || info.ID == identity.ClusterCN) {
		return bad("node name %q: a name is a DNS label in lower case other than %q", info.ID, identity.ClusterCN)
	}
	if len(info.Hostname) > 253 {
		return bad("hostname of %d bytes", len(info.Hostname))
	}
	if !(api.Resources{}).Fits(info.Capacity) {
		return bad("capacity %s", info.Capacity)
	}
	if info.Location != nil && !info.Location.Valid() {
		return bad("location %v is not on the earth", *info.Location)
	}
	if len(info.Devices) > maxDevices {
		return bad("%d devices, at most %d", len(info.Devices), maxDevices)
	}
	words := map[string][]string{"runtimes": info.Runtimes, "addons": info.Addons, "areas": info.Areas, "labels": nil}
	for key, value := range info.Labels {
		words["labels"] = append(words["labels"], key+"="+value)
	}
	for _, d := range info.Devices {
		if len(d.ID) > maxWord || len(d.Model) > maxWord {
			return bad("a device's name of %d bytes, at most %d", max(len(d.ID), len(d.Model)), maxWord)
		}
		if err := few("kinds of a device", d.Kinds); err != nil {
			return info, err
		}
	}
	for what, list := range words {
		if err := few(what, list); err != nil {
			return info, err
		}
	}
	return info, nil
}

func few(what string, list []string) error {
	if len(list) > maxWords {
		return fmt.Errorf("%d %s, at most %d: %w", len(list), what, maxWords, api.ErrInvalid)
	}
	for _, w := range list {
		if len(w) > maxWord {
			return fmt.Errorf("%s: a word of %d bytes, at most %d: %w", what, len(w), maxWord, api.ErrInvalid)
		}
	}
	return nil
}
