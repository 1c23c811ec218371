package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// ID is a name for the placement k that fits wherever a runtime needs one: 32
// hexadecimal digits, the same on every call. Instance names can be longer than
// containerd and file systems allow, and hold characters that they do not.
func ID(k api.Key) string {
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
