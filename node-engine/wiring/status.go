package wiring

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	goruntime "runtime"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/loop"
)

// counters are the engine's metrics. The Prometheus library would need more memory than the core.
type counters struct {
	steps, docs, failed, saveMicros atomic.Uint64
}

func (c *counters) observe(s loop.Sample) {
	c.steps.Add(uint64(s.Steps))
	c.docs.Add(uint64(s.Docs))
	c.failed.Add(uint64(s.Failed))
	c.saveMicros.Add(uint64(s.Saving.Microseconds()))
}

// serveStatus serves the engine's health on this machine only.
func (e *engine) serveStatus(ctx context.Context) error {
	var health daemon.Health
	health.RequireLoop(e.loop)
	health.Watch("cluster", func(context.Context) error { return e.link.Up() })
	if e.net != nil {
		health.Watch("network", func(context.Context) error { return e.net.Ready() })
	}
	return daemon.ServeStatus(ctx, e.cfg.ListenStatus, e.cfg.Data, health.Handler(http.HandlerFunc(e.metrics)))
}

func (e *engine) metrics(w http.ResponseWriter, r *http.Request) {
	var text bytes.Buffer
	if err := e.writeMetrics(r.Context(), &text); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = text.WriteTo(w)
}

// openMetrics returns the metrics to the cluster, whose operator has asked for them.
func (e *engine) openMetrics(ctx context.Context) (io.ReadCloser, error) {
	var text bytes.Buffer
	err := e.writeMetrics(ctx, &text)
	return io.NopCloser(&text), err
}

func (e *engine) writeMetrics(ctx context.Context, w *bytes.Buffer) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	states, allocated := map[api.State]int{}, 0
	if err := e.loop.Read(ctx, func() {
		for _, i := range e.core.Instances() {
			states[i.State]++
			allocated += len(i.Devices)
		}
	}); err != nil {
		return err
	}
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	up := 0
	if e.link.Up() == nil {
		up = 1
	}
	line := func(kind, name, help string, value any) {
		_, _ = fmt.Fprintf(w, "# HELP %[2]s %[3]s\n# TYPE %[2]s %[1]s\n%[2]s %[4]v\n", kind, name, help, value)
	}
	line("counter", "treeline_core_steps_total", "Steps of the core.", e.meter.steps.Load())
	line("counter", "treeline_core_inputs_dropped_total", "Inputs dropped because the queue was full.", e.loop.Dropped())
	line("counter", "treeline_store_documents_saved_total", "Documents saved.", e.meter.docs.Load())
	line("counter", "treeline_store_saves_failed_total", "Saves that failed and were repeated.", e.meter.failed.Load())
	line("counter", "treeline_store_save_seconds_total", "Time spent in saves.", float64(e.meter.saveMicros.Load())/1e6)
	line("gauge", "treeline_cluster_up", "1 while there is a connection to the cluster, else 0.", up)
	probes := e.pinger.Counts()
	line("counter", "treeline_probes_answered_total", "Probes that were answered.", probes.Answered)
	line("counter", "treeline_probes_silent_total", "Probes without an answer.", probes.Silent)
	line("counter", "treeline_probes_refused_total", "Probes that the policy denies.", probes.Refused)
	line("counter", "treeline_probes_excess_total", "Probes beyond the limit.", probes.Excess)
	line("gauge", "treeline_devices", "Devices that the node offers.", len(e.devices.List()))
	line("gauge", "treeline_devices_given", "Devices that instances have.", allocated)
	line("gauge", "treeline_certificate_end_seconds", "Expiry of the node's certificate, in Unix time.", e.keeper.Pair().Chain[0].NotAfter.Unix())
	line("gauge", "go_goroutines", "Number of goroutines.", goruntime.NumGoroutine())
	line("gauge", "go_memstats_heap_alloc_bytes", "Bytes of the heap in use.", m.HeapAlloc)
	line("gauge", "go_memstats_sys_bytes", "Bytes obtained from the system.", m.Sys)
	_, _ = fmt.Fprint(w, "# HELP treeline_instances Instances by state.\n# TYPE treeline_instances gauge\n")
	for _, s := range []api.State{api.NodeScheduled, api.Created, api.Running, api.Completed, api.Failed, api.Terminated} {
		_, _ = fmt.Fprintf(w, "treeline_instances{state=%q} %d\n", s, states[s])
	}
	return nil
}
