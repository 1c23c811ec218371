package containerd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// TestContainerdIsKilledWhileContainersStartAndStop kills containerd at moments that are spread over the start
// and the stop of containers with volumes. Calls are repeated, as the driver does: the containers run, each
// volume is mounted once and has what was synced, and nothing is left after the stop.
func TestContainerdIsKilledWhileContainersStartAndStop(t *testing.T) {
	const rounds, containers = 8, 3
	r, volumes, dir, daemon := volumesOf(t)
	workload := func(round, n int) runtime.Workload {
		w := newWorkload(2*n, "journal", "/data/pages") // of one application, with one shim
		w.Epoch = api.EpochOf(1, uint32(round+1))
		return w
	}
	// all calls do for each container until it succeeds, while containerd is killed after a time.
	all := func(round int, after time.Duration, do func(w runtime.Workload) error) (took time.Duration) {
		t.Helper()
		began := time.Now()
		var wg sync.WaitGroup
		for n := range containers {
			wg.Go(func() {
				var err error
				for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
					if err = do(workload(round, n)); err == nil {
						return
					}
				}
				t.Errorf("container %d: still fails after a minute: %v", n, err)
			})
		}
		if after >= 0 {
			time.Sleep(after)
			daemon.Kill()
			daemon.Start()
		}
		wg.Wait()
		return time.Since(began)
	}
	start := func(w runtime.Workload) (err error) {
		w.Mounts, err = volumes.Prepare(t.Context(), w.Key, []api.Volume{
			{Name: "pages", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 16},
			{Name: "scratch", Type: api.VolumeEphemeral, MountPath: "/scratch", SizeMB: 16},
		})
		if err == nil {
			err = r.Create(t.Context(), w)
		}
		if err == nil {
			_, err = volumes.Started(w.Key)
		}
		if err == nil {
			err = r.Start(t.Context(), w.Key)
		}
		if err != nil {
			return err
		}
		list, err := r.List(t.Context())
		if err != nil {
			return err
		}
		for _, s := range list {
			if s.Key == w.Key && s.Phase == wire.WorkloadExited { // its start was interrupted; the core restarts it
				return errors.Join(r.Stop(t.Context(), w.Key, 0), fmt.Errorf("%s has exited with %d", w.Key, s.ExitCode))
			}
		}
		return nil
	}
	stop := func(w runtime.Workload) error {
		if err := r.Stop(t.Context(), w.Key, 0); err != nil {
			return err
		}
		return volumes.Release(w.Key)
	}
	calm := map[string]time.Duration{"start": all(0, -1, start), "stop": all(0, -1, stop)}
	for round := 1; round <= rounds; round++ {
		moment := func(what string) time.Duration { return calm[what] * time.Duration(round) / rounds }
		all(round, moment("start"), start)
		list, err := r.List(t.Context())
		if err != nil || len(list) != containers || slices.ContainsFunc(list, func(s runtime.Status) bool { return s.Phase != wire.WorkloadRunning }) {
			t.Fatalf("round %d: containers: got %s, %v, want %d that run", round, phases(list), err, containers)
		}
		if m := mountsBelow(t, dir); len(m) != 2*containers || len(slices.Compact(m)) != len(m) {
			t.Errorf("round %d: mounts of volumes: got %v, want %d, none twice", round, m, 2*containers)
		}
		for n := range containers {
			w := workload(round, n)
			if got, err := journal(t, r, w.Key); err != nil || strings.Count(got, string(w.Instance)+" ") < round {
				t.Errorf("round %d: journal of container %d: got %q, %v, want a line of each round", round, n, got, err)
			}
		}
		all(round, moment("stop"), stop)
		for n := range containers {
			if all := left(t, r.cfg, workload(round, n).Key); len(all) > 0 {
				t.Errorf("round %d: left of container %d: %v", round, n, all)
			}
		}
		if m := mountsBelow(t, dir); len(m) > 0 {
			t.Errorf("round %d: mounts after the stop: %v", round, m)
		}
		bundles, _ := filepath.Glob(filepath.Join(daemon.Dir, "state", bundles, "*", "*"))
		if len(bundles) > 0 {
			t.Errorf("round %d: bundles after the stop: %v", round, bundles)
		}
	}
}

// journal waits until a container has printed its journal.
func journal(t *testing.T, r *Runtime, k wire.Key) (text string, err error) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); text == "" && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		l, err := r.Logs(t.Context(), k, -1, false)
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(l)
		_ = l.Close()
		if err != nil {
			return "", err
		}
		text = string(b)
	}
	if text == "" {
		return "", fmt.Errorf("nothing printed: %w", api.ErrNotFound)
	}
	return text, nil
}

// mountsBelow returns the mount points below a directory, sorted.
func mountsBelow(t *testing.T, dir string) (out []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			out = append(out, f[4])
		}
	}
	slices.Sort(out)
	return out
}

func phases(all []runtime.Status) (out string) {
	for _, s := range all {
		out += fmt.Sprintf("%s %s %d; ", s.Key, s.Phase, s.ExitCode)
	}
	return out
}
