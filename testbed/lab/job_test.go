package lab_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestJobs runs jobs in real containers. The schedule fires each minute, the shortest that cron has, so
// that the test waits for up to a minute.
func TestJobs(t *testing.T) {
	t.Parallel()
	o := containers(t)
	l := open(t, lab.Options{})
	c := l.Cluster("c1", lab.ClusterOptions{Args: []string{"--dead", "30s"}})
	for n := range 2 {
		c.Node(fmt.Sprintf("n%d", n), o)
	}
	l.Wait("the nodes take work", lab.Nodes("c1", 2))
	job := func(name string, completions int, cmd ...string) api.Microservice {
		m := lab.Needing(l.Container(name, 1), 0.05, 16)
		m.OneShot, m.Replicas, m.Completions, m.Cmd = true, nil, completions, append([]string{"/app"}, cmd...)
		return m
	}
	work := job("work", 5, "exit", "0", "300ms")
	work.Parallelism = 2
	retry := job("retry", 1, "exit", "3")
	retry.MaxAttempts = 2
	late := job("late", 1, "sleep")
	late.Deadline = 2
	tick := job("tick", 3, "exit", "0", "2s")
	tick.Parallelism, tick.Schedule = 2, &api.Schedule{Cron: "* * * * *"}
	l.Apply(lab.App("jobs", work, retry, late, tick))

	most := 0
	l.Wait("all have completed, at most two at a time", func(v lab.View) bool {
		now, done := 0, 0
		for _, in := range v.Instances {
			switch {
			case in.Service != l.ServiceID("jobs", "work"):
			case in.State == api.Completed:
				done++
			default:
				now++
			}
		}
		most = max(most, now)
		return done == 5
	})
	if most > 2 {
		t.Errorf("%d instances of work were under way, parallelism is 2", most)
	}
	l.Wait("the attempts are used up", lab.Is(l.ID("jobs", "retry", 0), func(i api.Instance) bool {
		return i.State == api.Failed && i.ExitCode != nil && *i.ExitCode == 3 && api.Ended(i.State, i.Reason)
	}))
	l.Wait("the deadline is over", lab.Is(l.ID("jobs", "late", 0), func(i api.Instance) bool { return i.State == api.Failed && i.Reason == api.ReasonDeadline }))

	var runs []api.Run
	lab.Within(t, 3*time.Minute, "the schedule fires and all its instances complete", func() error {
		runs = nil
		for n := range 3 {
			in, err := l.API.Instance(t.Context(), l.ID("jobs", "tick", n))
			if err != nil {
				return err
			}
			if len(in.Runs) == 0 || in.Runs[0].Result != api.RunCompleted {
				return fmt.Errorf("%s is %s: %s, runs: %+v", in.ID, in.State, in.Detail, in.Runs)
			}
			runs = append(runs, in.Runs[0])
		}
		return nil
	})
	for n, r := range runs {
		if !r.At.Equal(runs[0].At) || r.At.Second() != 0 || r.ExitCode == nil || *r.ExitCode != 0 || r.Started.Before(r.At) || r.Ended.Sub(r.Started) < 2*time.Second {
			t.Errorf("run of instance %d: %+v", n, r)
		}
	}
	if overlap := func(a, b api.Run) bool { return a.Started.Before(b.Ended) && b.Started.Before(a.Ended) }; overlap(runs[0], runs[1]) && overlap(runs[1], runs[2]) && overlap(runs[0], runs[2]) {
		t.Errorf("all three ran at the same time, parallelism is 2: %+v", runs)
	}
	if text := l.CLI("get", "runs", "jobs/tick"); strings.Count(text, "completed") < 3 || !strings.Contains(text, "tick.lab#2") {
		t.Errorf("treeline get runs prints\n%s", text)
	}
}
