package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

func because(reason api.Reason, format string, args ...any) error {
	return &runtime.Error{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// reasoned gives err the reason that it carries inside, or finds one; what
// nothing else explains is start_failed.
func reasoned(err error) error {
	if err == nil {
		return nil
	}
	reason := runtime.Reason(err)
	var e *runtime.Error
	switch {
	case errors.As(err, &e):
	case isFull(err):
		reason = api.ReasonDiskFull
	case errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded):
		reason = api.ReasonRuntimeDown
	case strings.Contains(err.Error(), "runtime") && strings.Contains(err.Error(), "binary not installed"):
		reason = api.ReasonNoRuntime
	}
	return &runtime.Error{Reason: reason, Err: err}
}

// pullError returns why an image was not pulled. For a registry that the operator did not
// name, all failures to reach it have one text: their differences would let an SLA scan
// names, addresses and ports through the node. The log has the cause.
func (r *Runtime) pullError(registry, ref string, err error) error {
	reason := pullReason(err)
	r.log.Warn("image not pulled", "image", ref, "reason", reason, "err", err)
	if reason == api.ReasonRegistryDown && r.cfg.registryAt(registry) < 0 {
		return because(reason, "pull image %q: registry %s cannot be reached from this node, or lies in a network from which this node pulls only named registries (its operator can name it in containerd.registries or containerd.registry_networks, and its log has the cause)", ref, registry)
	}
	return because(reason, "pull image %q: %w", ref, err)
}

// pullReason finds what went wrong with a registry.
func pullReason(err error) api.Reason {
	var status remoteerrors.ErrUnexpectedStatus
	var dns *net.DNSError
	var op *net.OpError
	var u *url.Error
	switch {
	case isFull(err):
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

// isFull recognises a full disk, in containerd's words too: its errors come as text.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), syscall.ENOSPC.Error())
}
