package examples_test

import (
	"bufio"
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/client"
	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func open(t *testing.T, setting string) *client.Scheduler {
	t.Helper()
	s, err := client.Open(t.Context(), setting)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// python starts the HTTP example and returns its URL.
func python(t *testing.T) string {
	t.Helper()
	programtest.Need(t, "python3")
	cmd := exec.CommandContext(t.Context(), "python3", "python/rank.py", "127.0.0.1:0")
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("read the address that the example listens on: %v", err)
	}
	return strings.TrimSpace(line)
}

func TestWebAssembly(t *testing.T) { plugintest.RunRanker(t, open(t, "wasm:quiet/quiet.wasm")) }

func TestHTTP(t *testing.T) {
	s := open(t, python(t))
	plugintest.RunRanker(t, s)
	solar := plugintest.Node("solar", api.Resources{MilliCPU: 1000, MemoryMB: 1024})
	solar.Labels = map[string]string{"power": "solar"}
	a := s.Rank(t.Context(), sched.Ask{Key: "k", Deadline: time.Minute, Candidates: []sched.Candidate{
		plugintest.Node("large", api.Resources{MilliCPU: 9000, MemoryMB: 1024}), solar,
	}})
	if a.Error != "" || len(a.Ranked) != 2 || a.Ranked[0].ID != "solar" {
		t.Fatalf("got %+v, want the solar node first of two", a)
	}
}
