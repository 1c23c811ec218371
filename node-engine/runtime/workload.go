package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// ID returns a name for the placement that is valid for containerd and file systems: 32
// hexadecimal digits, a hash of k. Instance names can be too long for both.
func ID(k wire.Key) string {
	sum := sha256.Sum256([]byte(k.String()))
	return hex.EncodeToString(sum[:16])
}

// Health returns the health checks of the workload: those of its SLA, else those of its image; nil:
// none.
func (w Workload) Health() *api.Health {
	if w.Spec.Health != nil {
		return w.Spec.Health
	}
	return w.ImageHealth
}

// OOMScoreAdj is the oom_score_adj of every workload: when memory is short, the kernel kills
// workloads before daemons, whose score is at most 0.
const OOMScoreAdj = 500

// Env returns the environment variables that every workload gets. They override those of its
// SLA and image.
func (w Workload) Env() []string {
	env := []string{
		"TREELINE_INSTANCE=" + string(w.Instance),
		"TREELINE_INSTANCE_NUMBER=" + strconv.Itoa(w.Instance.Number()),
		"TREELINE_SERVICE=" + string(w.Instance.Service()),
		"TREELINE_EPOCH=" + strconv.FormatUint(uint64(w.Epoch), 10),
		"TREELINE_ATTEMPT=" + strconv.Itoa(w.Attempt),
	}
	if len(w.Devices) > 0 {
		env = append(env, "TREELINE_DEVICES="+strings.Join(w.Devices, ","))
	}
	return env
}

// DefaultMemoryMB and DefaultMilliCPU are the limits of a workload whose assignment has no
// memory or vcpus. Only clusters of an earlier release send such assignments.
const (
	DefaultMemoryMB = 512
	DefaultMilliCPU = 1000
)

// LimitsOf returns the limits of a workload's control group. Both are above 0.
func LimitsOf(m api.Microservice) (memoryMB, milliCPU int64) {
	memoryMB, milliCPU = m.Memory, max(m.Needs().MilliCPU, 1)
	if memoryMB <= 0 {
		memoryMB = DefaultMemoryMB
	}
	if !(m.VCPUs > 0) { // NaN too
		milliCPU = DefaultMilliCPU
	}
	memoryMB += m.TmpfsMB() // its pages count for the control group
	return memoryMB, milliCPU
}
