package clusterlink

import (
	"context"
	"encoding/json"

	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/wire"
)

// maxProbes is how many probes are answered at once, most of them by a refusal:
// how much is probed is the pinger's to say. What comes beyond is not answered,
// which its sender expects of any message.
const maxProbes = 16

// probe measures what the cluster asks for and answers it.
func (l *Link) probe(ctx context.Context, m bus.Message) {
	var order wire.ProbeOrder
	if !l.decode(m, &order) {
		return
	}
	select {
	case l.probes <- struct{}{}:
	default:
		return
	}
	began := l.begin(func() {
		defer func() { <-l.probes }()
		b, err := json.Marshal(l.opt.Probe(ctx, order))
		l.publishOne(ctx, topic.Probed, b, err)
	})
	if !began {
		<-l.probes
	}
}
