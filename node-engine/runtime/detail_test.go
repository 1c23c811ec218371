package runtime_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// TestDetailHasOneHintAndNoReason: users see the reason beside the detail.
func TestDetailHasOneHintAndNoReason(t *testing.T) {
	cause := errors.New("pull image \"web:1\" of registry.example: 503 Service Unavailable")
	inner := &runtime.Error{Reason: api.ReasonRegistryDown, Err: cause}
	for _, err := range []error{
		inner,
		fmt.Errorf("create: %w", inner),
		&runtime.Error{Reason: api.ReasonRegistryDown, Err: fmt.Errorf("create: %w", &runtime.Error{Reason: api.ReasonRegistryDown, Err: inner})},
	} {
		got := runtime.Detail(err)
		if strings.Contains(got, "registry_down") || !strings.Contains(got, "registry.example: 503") || strings.Count(got, "check that the registry runs") != 1 {
			t.Errorf("detail of %v: got %q, want the cause, one hint and no reason", err, got)
		}
		if runtime.Reason(err) != api.ReasonRegistryDown {
			t.Errorf("reason of %v: got %s, want %s", err, runtime.Reason(err), api.ReasonRegistryDown)
		}
	}
	if got := runtime.Detail(errors.New("odd")); got != "odd" {
		t.Errorf("detail without a reason: got %q, want %q", got, "odd")
	}
}

// TestEveryWorkloadIsBounded: a workload has limits, whatever its assignment contains.
func TestEveryWorkloadIsBounded(t *testing.T) {
	for _, c := range []struct {
		memory       int64
		vcpus        float64
		wantMB, want int64
	}{
		{64, 0.25, 64, 250},
		{0, 0, runtime.DefaultMemoryMB, runtime.DefaultMilliCPU},
		{-1, -1, runtime.DefaultMemoryMB, runtime.DefaultMilliCPU},
		{64, math.NaN(), 64, runtime.DefaultMilliCPU},
		{64, 1e-9, 64, 1},
	} {
		memory, cpu := runtime.LimitsOf(api.Microservice{Memory: c.memory, VCPUs: c.vcpus})
		if memory != c.wantMB || cpu != c.want {
			t.Errorf("memory %d and vcpus %g: limits of %d MiB and %d milli, want %d and %d", c.memory, c.vcpus, memory, cpu, c.wantMB, c.want)
		}
	}
}
