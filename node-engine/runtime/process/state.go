package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
)

const (
	workloadFile = "workload.json"
	runFile      = "run.json"
	exitFile     = "exit.json"
)

// plan is what a shim is to run.
type plan struct {
	wire.Key
	Attempt  int
	Spec     api.Microservice
	Devices  []string
	Boot     string // the machine's life that it was made in
	Log      string
	Cgroup   string
	Limits   cgroup.Limits
	UID, GID int
	Args     []string
	Env      []string
}

// run is what runs.
type run struct {
	Shim process
	Main process // zero until it has been started
}

// exit is how it ended.
type exit struct {
	Code int
	OOM  bool
}

// state is all that the files say of a workload.
type state struct {
	plan plan
	run  run
	exit *exit
}

// state reads the files; a workload that does not exist is fs.ErrNotExist.
func (r *Runtime) state(id string) (state, error) {
	var s state
	if err := r.readJSON(id, workloadFile, &s.plan); err != nil {
		return state{}, err
	}
	if s.plan.Boot != r.boot {
		s.exit = &exit{Code: unknownExit} // the machine has been started anew since
		return s, nil
	}
	err := r.readJSON(id, runFile, &s.run)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return state{}, err
	}
	var e exit
	switch err := r.readJSON(id, exitFile, &e); {
	case err == nil:
		s.exit = &e
	case !errors.Is(err, fs.ErrNotExist):
		return state{}, err
	}
	return s, nil
}

// status is what Runtime.List says of a workload.
func (r *Runtime) status(id string) (runtime.Status, error) {
	s, err := r.state(id)
	if err != nil {
		return runtime.Status{}, err
	}
	shim, main := s.run.Shim.alive(), s.run.Main.alive()
	if s.exit == nil && s.run.Shim.PID != 0 && !shim && !main {
		// It ended while we looked, or its shim was killed.
		if s, err = r.state(id); err != nil {
			return runtime.Status{}, err
		}
		if s.exit == nil && s.run.Main.PID != 0 {
			s.exit = &exit{Code: unknownExit, OOM: r.group(id).OOMKills() > 0}
		}
	}
	st := runtime.Status{Key: s.plan.Key, Attempt: s.plan.Attempt, Spec: s.plan.Spec, Devices: s.plan.Devices, Phase: wire.WorkloadCreated}
	switch {
	case s.exit != nil:
		st.Phase, st.ExitCode, st.OOM = wire.WorkloadExited, s.exit.Code, s.exit.OOM
	case s.run.Main.PID != 0:
		st.Phase, st.PID = wire.WorkloadRunning, s.run.Main.PID
	}
	return st, nil
}

func (r *Runtime) readJSON(id, name string, v any) error {
	return readJSON(r.root, filepath.Join(id, name), v)
}

func readJSON(root *os.Root, path string, v any) error {
	b, err := root.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	return nil
}
