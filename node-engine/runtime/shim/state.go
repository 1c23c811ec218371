package shim

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/helper"
)

const (
	workloadFile = "workload.json"
	runFile      = "run.json"
	exitFile     = "exit.json"
)

// Plan is the content of workloadFile: what a shim runs.
type Plan struct {
	wire.Key
	Attempt   int
	Spec      api.Microservice
	Devices   []string
	Addresses api.ServiceAddresses
	Boot      string // of the machine, when it was created; set by Put
	Log       string // path; set by Put
	Cgroup    string // set by Put
	Limits    cgroup.Limits
	UID, GID  int
	Groups    []int `json:",omitempty"` // further groups
	Args      []string
	Env       []string
}

// run has the processes of a workload.
type run struct {
	Shim Process
	Main Process // zero until it is started
}

// exit is how a workload ended.
type exit struct {
	Code int
	OOM  bool
}

// state is the content of a workload's files.
type state struct {
	plan Plan
	run  run
	exit *exit
}

// state reads the files. It fails with fs.ErrNotExist if the workload does not exist.
func (r *Workloads) state(id string) (state, error) {
	var s state
	if err := helper.ReadJSON(r.root, filepath.Join(id, workloadFile), &s.plan); err != nil {
		return state{}, err
	}
	if s.plan.Boot != r.boot {
		s.exit = &exit{Code: unknownExitCode} // the machine was restarted since
		return s, nil
	}
	var e exit
	err := helper.ReadJSON(r.root, filepath.Join(id, runFile), &s.run)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return state{}, err
	}
	switch err := helper.ReadJSON(r.root, filepath.Join(id, exitFile), &e); {
	case err == nil:
		s.exit = &e
	case !errors.Is(err, fs.ErrNotExist):
		return state{}, err
	}
	return s, nil
}

// status returns the workload's status for List.
func (r *Workloads) status(id string) (runtime.Status, error) {
	s, err := r.state(id)
	if err != nil {
		return runtime.Status{}, err
	}
	shim, main := s.run.Shim.alive(), s.run.Main.alive()
	if s.exit == nil && s.run.Shim.PID != 0 && !shim && !main {
		// It has just ended, or its shim was killed.
		if s, err = r.state(id); err != nil {
			return runtime.Status{}, err
		}
		if s.exit == nil && s.run.Main.PID != 0 {
			s.exit = &exit{Code: unknownExitCode, OOM: r.Group(id).OOMKills() > 0}
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
