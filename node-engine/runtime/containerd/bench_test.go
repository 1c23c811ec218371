package containerd

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
)

// BenchmarkStart measures Create and Start of a workload, and the same by containerd's client
// alone, which is the lower bound.
func BenchmarkStart(b *testing.B) {
	daemon := runtimetest.StartContainerd(b)
	r := openRuntime(b, testConfig(b, daemon, imageDir(b)))
	img, err := r.image(r.ctx, runtime.Workload{Spec: spec()})
	if err != nil {
		b.Fatal(err)
	}
	ctx := r.ctx
	raw := func(b *testing.B, more ...oci.SpecOpts) {
		var m median
		defer m.report(b)
		for i := 0; b.Loop(); i++ {
			began := time.Now()
			id := fmt.Sprintf("raw-%d", i)
			c, err := r.c.NewContainer(ctx, id, client.WithImage(img), client.WithNewSnapshot(id, img),
				client.WithNewSpec(append(more, oci.WithImageConfig(img), oci.WithProcessArgs("/app", "sleep"))...))
			if err != nil {
				b.Fatal(err)
			}
			task, err := c.NewTask(ctx, cio.NullIO)
			if err != nil {
				b.Fatal(err)
			}
			exited, err := task.Wait(ctx)
			if err != nil {
				b.Fatal(err)
			}
			if err := task.Start(ctx); err != nil {
				b.Fatal(err)
			}
			m.add(began)
			b.StopTimer()
			_ = task.Kill(ctx, 9)
			<-exited
			if _, err := task.Delete(ctx); err != nil {
				b.Fatal(err)
			}
			if err := c.Delete(ctx, client.WithSnapshotCleanup); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	}
	b.Run("raw-unconfined", func(b *testing.B) { raw(b) })
	b.Run("raw-seccomp", func(b *testing.B) { raw(b, seccomp.WithDefaultProfile()) })
	for _, grouped := range []bool{false, true} {
		b.Run(map[bool]string{false: "adapter-first-of-app", true: "adapter-next-of-app"}[grouped], func(b *testing.B) {
			if grouped {
				run(b, r, 0, "sleep")
			}
			var m median
			defer m.report(b)
			for i := 2; b.Loop(); i += 2 {
				began := time.Now()
				w := newWorkload(i, "sleep")
				if err := createAndStart(ctx, r, w); err != nil {
					b.Fatal(err)
				}
				m.add(began)
				b.StopTimer()
				if err := r.Stop(ctx, w.Key, 0); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

func createAndStart(ctx context.Context, r *Runtime, w runtime.Workload) error {
	if err := r.Create(ctx, w); err != nil {
		return err
	}
	return r.Start(ctx, w.Key)
}

// median of the durations of one benchmark.
type median []time.Duration

func (m *median) add(began time.Time) { *m = append(*m, time.Since(began)) }

func (m *median) report(b *testing.B) {
	if len(*m) == 0 {
		return
	}
	slices.Sort(*m)
	b.ReportMetric(float64((*m)[len(*m)/2].Microseconds())/1000, "median-ms")
}
