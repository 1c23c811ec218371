package api

import "time"

// Schedule says when the instances of a one-shot run. Each instance waits in its cluster without a
// node, and the cluster starts it at the times of the schedule, without the root.
type Schedule struct {
	Cron     string  `json:"cron"`                // five fields, or @daily and the like; see MaxCron
	TimeZone string  `json:"time_zone,omitempty"` // IANA name; empty: UTC
	Overlap  Overlap `json:"overlap,omitempty"`   // empty: OverlapForbid
	// StartingDeadline is how late a run may start, in seconds; 0 means DefaultStartingDeadline.
	StartingDeadline int  `json:"starting_deadline,omitempty"`
	Suspend          bool `json:"suspend,omitempty"` // no run starts
	// RunsAtOnce is how many runs may be under way at the same time with OverlapAllow; 0 means
	// DefaultRunsAtOnce.
	RunsAtOnce int `json:"runs_at_once,omitempty"`
}

// Overlap is what happens at a scheduled time at which the instance's last run has not ended.
type Overlap string

const (
	OverlapForbid  Overlap = "forbid"  // the time is skipped
	OverlapReplace Overlap = "replace" // the last run is stopped
	OverlapWait    Overlap = "wait"    // the run starts when the last one has ended, within the starting deadline
	OverlapAllow   Overlap = "allow"   // another instance of the lane takes the run; see Schedule.Lane
)

const (
	DefaultStartingDeadline = 3600  // s
	MaxStartingDeadline     = 86400 // s
	MaxCron                 = 128   // bytes of an expression; package internal/cron reads it
	DefaultRunsAtOnce       = 3
	MaxRunsAtOnce           = 20
	MaxDeadline             = 30 * 86400
	MaxTimeToLive           = 365 * 86400
)

// Within returns how late a run may start.
func (s *Schedule) Within() time.Duration {
	if s.StartingDeadline == 0 {
		return DefaultStartingDeadline * time.Second
	}
	return time.Duration(s.StartingDeadline) * time.Second
}

// Lane returns how many instances take turns at the times of the schedule: instances 0 to Lane()-1 do,
// the next Lane() as well, and so on. Each time is a run of one instance of each lane. It is 1 unless
// runs may overlap.
func (s *Schedule) Lane() int {
	switch {
	case s.Overlap != OverlapAllow:
		return 1
	case s.RunsAtOnce == 0:
		return DefaultRunsAtOnce
	}
	return s.RunsAtOnce
}

// Together reports whether all instances of the service have to be in the same cluster, because they
// decide together when each of them runs.
func (m Microservice) Together() bool {
	return m.Schedule != nil && (m.Parallelism > 0 || m.Schedule.Lane() > 1)
}

// RunResult is the result of a run of a schedule.
type RunResult string

const (
	RunWaiting   RunResult = "waiting"   // it is due and has no node yet
	RunRunning   RunResult = "running"   // it has a node
	RunCompleted RunResult = "completed" // it exited with 0
	RunFailed    RunResult = "failed"    // its attempts are used up, or its deadline is over
	RunSkipped   RunResult = "skipped"   // the run before had not ended
	RunMissed    RunResult = "missed"    // it could not start within the starting deadline
	RunStopped   RunResult = "stopped"   // the next run, a new SLA or its removal ended it
)

// Run is one run of a scheduled instance, by the clock of its cluster.
type Run struct {
	At       time.Time `json:"at"`               // the scheduled time
	Started  time.Time `json:"started,omitzero"` // when it first got a node
	Ended    time.Time `json:"ended,omitzero"`
	Result   RunResult `json:"result"`
	Reason   Reason    `json:"reason,omitempty"`
	Detail   string    `json:"detail,omitempty"`
	ExitCode *int      `json:"exit_code,omitempty"`
}

// MaxRuns is how many runs of an instance are kept, including the present one.
const MaxRuns = 10

const schedulePath = servicePath + "/schedule"

func jobFields() []Field {
	return []Field{
		{
			Pointer: servicePath + "/deadline", Type: IntegerField, Unit: "s", Max: MaxDeadline, Default: "0",
			Doc:  "How long a `one_shot` may take on its node, with all its attempts and the pauses between them. Then it is ended and has failed for good, with the reason `deadline`. If it moves to another node, the time begins anew. 0: no limit (Treeline's own).",
			Rule: "only with `one_shot`",
		},
		{
			Pointer: servicePath + "/time_to_live", Type: IntegerField, Unit: "s", Max: MaxTimeToLive, Default: "0",
			Doc:  "How long the instances of a `one_shot` are kept after all of them have completed or failed for good. Then they are removed, and the application if no other service of it is left. 0: they are kept (Treeline's own).",
			Rule: "only with `one_shot`, not with `schedule`",
		},
		{
			Pointer: servicePath + "/completions", Type: IntegerField, Max: MaxReplicas, Default: "`replicas`",
			Doc:  "The number of instances of a `one_shot` that have to complete: another name of `replicas`, as in a Kubernetes Job. With `schedule`: of each run (Treeline's own).",
			Rule: "only with `one_shot`; the same as `replicas` if both are given, and with `overlap: allow`, `replicas` divided by `runs_at_once`",
		},
		{
			Pointer: servicePath + "/parallelism", Type: IntegerField, Max: MaxReplicas, Default: "0",
			Doc:  "The maximum number of instances of a `one_shot` that exist at the same time without having ended. With `schedule`: that run at the same time; the others of a run take their turns, and all instances are in one cluster. 0: all (Treeline's own).",
			Rule: "only with `one_shot`",
		},
		{
			Pointer: schedulePath, Type: ObjectField,
			Doc:  "When a `one_shot` runs. Its cluster decides this, also without the root, and no scheduled time runs twice. Between two runs an instance is dormant: it has no node and takes no resources, except that its last node keeps its logs. It is `exclusive` (Treeline's own).",
			Rule: "only with `one_shot`; not with `on_disconnect: keep`",
		},
		{
			Pointer: schedulePath + "/cron", Type: StringField, Required: true, Length: MaxCron,
			Doc:  "Minute, hour, day of the month, month and day of the week, `30 2 * * mon-fri`; or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. If clocks are set back, a time of day runs once; if they are set forward over it, it runs at the change.",
			Rule: "it has a time within five years",
		},
		{
			Pointer: schedulePath + "/time_zone", Type: StringField, Length: 64, Default: "`UTC`",
			Doc: "The time zone of `cron`, `Europe/Berlin`.", Rule: "an IANA time zone",
		},
		{
			Pointer: schedulePath + "/overlap", Type: StringField, Enum: []string{"", string(OverlapForbid), string(OverlapReplace), string(OverlapWait), string(OverlapAllow)}, Default: "`forbid`",
			Doc: "What happens at a time at which the last run has not ended. `forbid`: the time is skipped. `replace`: the last run is stopped. `wait`: the run starts when the last one has ended. `allow`: the run starts beside it, on another instance of the service; all instances are in one cluster.",
		},
		{
			Pointer: schedulePath + "/runs_at_once", Type: IntegerField, Max: MaxRunsAtOnce, Default: itoa(DefaultRunsAtOnce),
			Doc:  "How many runs may be under way at the same time with `overlap: allow`; a time beyond is skipped. The service has this number of instances for each of its `completions`, which are dormant between runs. 0 means the default.",
			Rule: "only with `overlap: allow`; 0 or at least 2; times `completions` at most " + itoa(MaxReplicas),
		},
		{
			Pointer: schedulePath + "/starting_deadline", Type: IntegerField, Unit: "s", Max: MaxStartingDeadline, Default: itoa(DefaultStartingDeadline),
			Doc: "How late a run may start, because its cluster was down, no node had room or the last run had not ended. Of several times that have passed, the newest runs and the others are missed. 0 means the default.",
		},
		{
			Pointer: schedulePath + "/suspend", Type: BooleanField, Default: "false",
			Doc: "No run starts. Times that pass meanwhile are not made up for.",
		},
	}
}

// jobRule checks the fields of one-shots.
func jobRule(c checker, at string, v *value) {
	for _, name := range []string{"deadline", "time_to_live", "completions", "parallelism", "schedule"} {
		if !given(v.get(name)) {
			continue
		}
		if !v.get("one_shot").truth {
			c.fault(at+"/"+name, "add one_shot: true, or leave "+name+" out", "%s applies to a one_shot", name)
		} else if name == "time_to_live" && given(v.get("schedule")) {
			c.fault(at+"/"+name, "leave "+name+" or schedule out", "%s cannot be combined with schedule: a schedule never ends", name)
		}
	}
	lane := laneRule(c, at, v)
	if n, replicas := v.get("completions"), v.get("replicas"); lane == 1 && given(n) && replicas.kind == NumberField && replicas.text != n.text {
		c.fault(at+"/completions", "leave one of them out", "completions is %s and replicas is %s, but they mean the same", n.text, replicas.text)
	}
	if given(v.get("schedule")) && v.get("on_disconnect").text == string(KeepRunning) {
		c.fault(at+"/on_disconnect", "leave on_disconnect out",
			"a scheduled service cannot keep running on a node without its cluster: a run could run twice")
	}
}

// laneRule checks the fields of overlapping runs, and returns how many instances take turns.
func laneRule(c checker, at string, v *value) int {
	s := v.get("schedule")
	n := whole(s.get("runs_at_once"), 0)
	if s.get("overlap").text != string(OverlapAllow) {
		if n > 0 {
			c.fault(at+"/schedule/runs_at_once", "add overlap: allow, or leave runs_at_once out", "runs_at_once is %d, but runs do not overlap", n)
		}
		return 1
	}
	if n == 1 {
		c.fault(at+"/schedule/runs_at_once", "at least 2, or overlap: forbid", "runs_at_once is 1, but overlap is allow")
	}
	lane := (&Schedule{Overlap: OverlapAllow, RunsAtOnce: n}).Lane()
	all := lane * max(1, whole(v.get("completions"), 1))
	if all > MaxReplicas {
		c.fault(at+"/completions", "fewer completions or runs_at_once", "completions times runs_at_once is %d, more than %d", all, MaxReplicas)
	} else if r := whole(v.get("replicas"), all); r != all {
		c.fault(at+"/replicas", "leave replicas out", "replicas is %d; with overlap: allow it is completions times runs_at_once, %d", r, all)
	}
	return lane
}

func given(v *value) bool { return v.kind == ObjectField || !neutral(v) }
