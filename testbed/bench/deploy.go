package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// stages are the stages of one deployment in order. The times of the first and the last three
// come from the root's API, the others from containerd.
var stages = []string{"accepted", "container", "snapshot", "task created", "task started", "running"}

// settle is the pause before the next sample, in which containerd cleans up after a container:
// it ends shims asynchronously.
const settle = 300 * time.Millisecond

// deploy measures the time from the submission of an SLA until its instance is observed running
// at the root, and how much longer that is than creating and starting the same container in
// containerd. Samples with root, cluster and node alternate with samples of containerd alone.
func deploy(r *run) error {
	return inLab(r, func(l *lab.Lab) error {
		c := l.Cluster("munich", lab.ClusterOptions{Args: quiet})
		n := c.Node("n1", lab.NodeOptions{Containers: true, CPUs: 2, Args: quiet})
		l.Wait("the node takes work", lab.Nodes("munich", 1))

		d := deployer{lab: l}
		first, err := d.once(0, nil) // imports the image and opens connections
		if err != nil {
			return err
		}
		r.logf("the first deployment, with the image's import: %s", first["running"].Round(time.Millisecond))
		floor, err := newFloor(l, n, idler(l, 1))
		if err != nil {
			return err
		}
		defer floor.close()
		if d.events, err = floor.events(); err != nil {
			return err
		}
		var confined, open, over series
		way, floorWay := map[string]*series{}, map[string]*series{}
		for _, s := range stages {
			way[s], floorWay[s] = &series{}, &series{}
		}
		for i := 1; i <= r.n; i++ {
			if err := sleep(r.ctx, settle); err != nil {
				return err
			}
			w := watch(l.Dir)
			bare, err := floor.once(i, true)
			if err != nil {
				return err
			}
			bad := w.disturbed()
			confined.add(ms(bare["task started"]), bad)
			split(bare, floorWay, bad)
			if err := sleep(r.ctx, settle); err != nil {
				return err
			}
			w = watch(l.Dir)
			at, err := d.once(i, floor)
			if err != nil {
				return err
			}
			bad = w.disturbed() || bad
			d.total.add(ms(at["running"]), bad)
			over.add(ms(at["running"]-bare["task started"]), bad)
			split(at, way, bad)
			if err := sleep(r.ctx, settle); err != nil {
				return err
			}
			w = watch(l.Dir)
			if bare, err = floor.once(r.n+i, false); err != nil {
				return err
			}
			open.add(ms(bare["task started"]), w.disturbed())
		}
		base := confined.record("deploy.floor", "ms")
		r.emit(base.noting("containerd alone: snapshot, container, task, start, with the OCI spec that the node engine writes"))
		r.emit(open.record("deploy.floor.no-seccomp", "ms").over(base.Name, base.Median))
		total := d.total.record("deploy.submit-running", "ms")
		r.emit(total.over(base.Name, base.Median))
		r.emit(over.record("deploy.overhead", "ms").atMost(30).over(base.Name, base.Median).
			noting("each sample is a deployment less the floor's sample taken right before it; difference of the medians: %.1f ms", total.Median-base.Median))
		for _, s := range stages {
			rec := way[s].record("deploy.to."+s, "ms")
			if f := floorWay[s].values; len(f) > 0 {
				rec = rec.over("deploy.floor", quantile(f, 0.5))
			}
			r.emit(rec)
		}
		return nil
	})
}

// split adds the durations between the times.
func split(at map[string]time.Duration, to map[string]*series, disturbed bool) {
	last := time.Duration(0)
	for _, s := range stages {
		if t, ok := at[s]; ok {
			to[s].add(ms(t-last), disturbed)
			last = t
		}
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

type deployer struct {
	lab    *lab.Lab
	events <-chan happened
	total  series
}

// once deploys an application, waits until it runs, and deletes it. The returned times are
// relative to the submission.
func (d *deployer) once(i int, f *floor) (map[string]time.Duration, error) {
	l, app := d.lab, fmt.Sprintf("app%d", i)
	id := l.ID(app, "web", 0)
	sla := lab.App(app, idler(l, 1))
	for drained := d.events == nil; !drained; {
		select {
		case <-d.events:
		default:
			drained = true
		}
	}
	began := time.Now()
	l.Apply(sla)
	at := map[string]time.Duration{"accepted": time.Since(began)}
	l.Wait(app+" runs", lab.Is(id, func(i api.Instance) bool { return i.State == api.Running }))
	at["running"] = time.Since(began)
	if f != nil {
		for at["task started"] == 0 {
			select {
			case e := <-d.events:
				if stage := topics[e.topic]; stage != "" && slices.Contains(stages, stage) {
					at[stage] = e.at.Sub(began)
				}
			case <-time.After(10 * time.Second):
				return nil, fmt.Errorf("containerd reported no start of %s; reported: %v", id, at)
			}
		}
	}
	l.Delete(app)
	return at, nil
}
