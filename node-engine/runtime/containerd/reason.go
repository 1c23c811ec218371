package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// failure wraps err, if it is not nil, in a *runtime.Error.
func failure(action string, k wire.Key, err error) error {
	if err == nil {
		return nil
	}
	return withReason(fmt.Errorf("%s %s: %w", action, k, err))
}

// withReason wraps err in a *runtime.Error with the reason in err, or one that is derived from it.
func withReason(err error) error {
	reason := runtime.Reason(err)
	if reason == api.ReasonStartFailed {
		switch text := err.Error(); {
		case errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded):
			reason = api.ReasonRuntimeDown
		case strings.Contains(text, "runtime") && strings.Contains(text, "binary not installed"):
			reason = api.ReasonNoRuntime
		}
	}
	return &runtime.Error{Reason: reason, Err: err}
}

// pullError returns the error for an image that was not pulled. For a registry that the
// operator did not name, all failures to reach it have one text: their differences would let an
// SLA scan names, addresses and ports through the node. The log has the cause.
func (r *Runtime) pullError(registry, ref string, err error) error {
	reason := pullReason(err)
	r.log.Warn("image not pulled", "image", ref, "reason", reason, "err", err)
	if reason == api.ReasonRegistryDown && !r.cfg.isNamed(registry) {
		return runtime.Errorf(reason, "pull image %q: registry %s cannot be reached from this node, or lies in a network from which this node pulls only named registries (its operator can name it in containerd.registries or containerd.registry_networks, and its log has the cause)", ref, registry)
	}
	return runtime.Errorf(reason, "pull image %q: %w", ref, err)
}

func pullReason(err error) api.Reason {
	var status remoteerrors.ErrUnexpectedStatus
	var dns *net.DNSError
	var op *net.OpError
	var u *url.Error
	switch {
	case runtime.IsDiskFull(err):
		return api.ReasonDiskFull
	case errors.Is(err, docker.ErrInvalidAuthorization):
		return api.ReasonImageDenied
	case errors.As(err, &status):
		switch status.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return api.ReasonImageDenied
		case http.StatusNotFound:
			return api.ReasonImageNotFound
		}
		return api.ReasonRegistryDown
	case errors.As(err, &dns), errors.As(err, &op), errors.As(err, &u), errors.Is(err, context.DeadlineExceeded):
		return api.ReasonRegistryDown
	case errdefs.IsUnavailable(err):
		return api.ReasonRuntimeDown
	case errdefs.IsNotFound(err):
		if strings.Contains(err.Error(), "no match for platform") {
			return api.ReasonImageBad
		}
		return api.ReasonImageNotFound
	}
	return api.ReasonImageBad
}
