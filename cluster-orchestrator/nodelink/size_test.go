package nodelink

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/bus/parts"
)

// Refusing a hostile node's message must not allocate a multiple of its size.
func TestReportsAreMeasuredBeforeTheyAreDecoded(t *testing.T) {
	many := func(head, item, tail string) []byte {
		return []byte(head + strings.Repeat(item+",", (parts.Max-100)/(len(item)+1)) + item + tail)
	}
	for name, c := range map[string]struct {
		read func(api.NodeID, []byte) (cluster.Input, error)
		text []byte
	}{
		"observed": {observed, many(`{"observed":[`, `{}`, `]}`)},
		"devices":  {observed, many(`{"info":{"devices":[`, `{}`, `]}}`)},
		"labels":   {observed, many(`{"info":{"runtimes":[`, `""`, `]}}`)},
		"wants":    {netUp, many(`{"add":[`, `{}`, `]}`)},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := c.read("n1", c.text)
		runtime.ReadMemStats(&after)
		if used := (after.TotalAlloc - before.TotalAlloc) >> 20; !errors.Is(err, api.ErrTooLarge) || used > 64 {
			t.Errorf("%s: %v after %d MiB", name, err, used)
		}
	}
}
