package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// ID is a name for the placement k that fits wherever a runtime needs one: 32
// hexadecimal digits, the same on every call. Instance names can be longer than
// containerd and file systems allow, and hold characters that they do not.
func ID(k wire.Key) string {
	sum := sha256.Sum256([]byte(k.String()))
	return hex.EncodeToString(sum[:16])
}

// OOMScoreAdj is every workload's oom_score_adj: when memory is short the kernel
// kills workloads before daemons, whose score is never above 0.
const OOMScoreAdj = 500

// Env is what every workload finds in its environment, after and above what its
// SLA and its image say: who it is, and the devices that it has to itself.
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

// DefaultMemoryMB and DefaultMilliCPU bound a workload whose assignment names no
// memory or no vcpus. A cluster names both; one of an earlier release does not.
const (
	DefaultMemoryMB = 512
	DefaultMilliCPU = 1000
)

// LimitsOf returns what bounds a workload of this spec in its control group. Both are
// above 0.
func LimitsOf(m api.Microservice) (memoryMB, milliCPU int64) {
	memoryMB, milliCPU = m.Memory, m.Needs().MilliCPU
	if memoryMB <= 0 {
		memoryMB = DefaultMemoryMB
	}
	switch {
	case !(m.VCPUs > 0):
		milliCPU = DefaultMilliCPU
	case milliCPU < 1:
		milliCPU = 1
	}
	return memoryMB, milliCPU
}
