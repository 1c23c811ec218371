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

// pullError is why an image was not pulled. Of a registry that the operator did not
// name nobody learns why it cannot be reached: names, addresses and ports would be
// scanned through the node. The log has it.
func (r *Runtime) pullError(registry, ref string, err error) error {
	reason := pullReason(err)
	r.log.Warn("image not pulled", "image", ref, "reason", reason, "err", err)
	if reason == api.ReasonRegistryDown && r.cfg.registryAt(registry) < 0 {
		return because(reason, "pull image %q: registry %s gives no image to this node; it does not answer as a registry, or lies where this node may pull from named registries only (its operator can name it in containerd.registries or containerd.registry_networks, and its log says more)", ref, registry)
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
