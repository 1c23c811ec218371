package api

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// Scale lets the clusters of a service choose its number of running instances. The root assigns Max
// instances. Those with numbers below Min always run; the others sleep until they are needed. With
// Min 0, the first packet to one of the service's addresses wakes an instance.
//
// CPU, Memory and Connections are the wanted means per running instance; 0: not considered. The
// largest number that one of them asks for counts.
type Scale struct {
	Min         *int `json:"min,omitempty"` // nil: 1
	Max         int  `json:"max"`
	CPU         int  `json:"cpu,omitempty"`         // percent of vcpus
	Memory      int  `json:"memory,omitempty"`      // percent of memory
	Connections int  `json:"connections,omitempty"` // open TCP connections to an instance

	IdleTime          int  `json:"idle_time,omitempty"`          // s; 0: DefaultIdleTime
	StabilisationUp   int  `json:"stabilisation_up,omitempty"`   // s
	StabilisationDown *int `json:"stabilisation_down,omitempty"` // s; nil: DefaultStabilisationDown
}

// The defaults and bounds of Scale.
const (
	DefaultIdleTime          = 300 // s
	DefaultStabilisationDown = 300 // s

	MaxScale           = 1000
	MaxStabilisation   = 3600 // s
	MaxIdleTime        = 86_400
	MinIdleTime        = 5
	MaxConnectionsGoal = 1_000_000
)

// Least returns the number of instances that always run.
func (s *Scale) Least() int {
	if s.Min == nil {
		return 1
	}
	return *s.Min
}

// ToZero reports whether all instances may sleep.
func (s *Scale) ToZero() bool { return s != nil && s.Least() == 0 }

// Sleeps reports whether an instance of that number may sleep. Additional instances of a roll-out, whose
// numbers are above, may not: they prove a version.
func (s *Scale) Sleeps(number int) bool { return s != nil && number >= s.Least() && number < s.Max }

// Idle returns how long the last instance must be idle before it sleeps.
func (s *Scale) Idle() time.Duration {
	return time.Duration(cmp.Or(s.IdleTime, DefaultIdleTime)) * time.Second
}

// Windows returns how long a number of instances must be wanted before it is increased or decreased.
func (s *Scale) Windows() (up, down time.Duration) {
	n := DefaultStabilisationDown
	if s.StabilisationDown != nil {
		n = *s.StabilisationDown
	}
	return time.Duration(s.StabilisationUp) * time.Second, time.Duration(n) * time.Second
}

const scalePath = servicePath + "/scale"

var scaleFields = []Field{
	{
		Pointer: scalePath, Type: ObjectField,
		Doc:  "Its number of running instances follows its load, within `min` and `max` (Treeline's own). The cluster decides, also without the root. Other instances sleep: they have a cluster and addresses, and use nothing. It runs only on nodes that report the load of instances.",
		Rule: "not with `replicas`, `one_shot`, `exclusive`, volumes of type `local` or `virtualization: process`, `microvm` or `unikernel`; at least one of `cpu`, `memory` and `connections` unless `max` is 1",
	},
	{
		Pointer: scalePath + "/min", Type: IntegerField, Max: MaxScale, Default: "1",
		Doc:  "The number of instances that always run. 0: when it is idle none runs, and the first packet to one of its addresses waits until an instance has started.",
		Rule: "not above `max`; 0 not with `network: any` or `port`",
	},
	{Pointer: scalePath + "/max", Type: IntegerField, Required: true, Min: 1, Max: MaxScale, Doc: "The largest number of instances."},
	{
		Pointer: scalePath + "/cpu", Type: IntegerField, Unit: "%", Max: 100, Default: "not considered",
		Doc: "The wanted mean use of `vcpus` of the running instances.", Rule: "only with `vcpus`",
	},
	{
		Pointer: scalePath + "/memory", Type: IntegerField, Unit: "%", Max: 100, Default: "not considered",
		Doc: "The wanted mean use of `memory` of the running instances.", Rule: "only with `memory`",
	},
	{
		Pointer: scalePath + "/connections", Type: IntegerField, Max: MaxConnectionsGoal, Default: "not considered",
		Doc: "The wanted mean number of open TCP connections to an instance.", Rule: "not with `network: any`",
	},
	{
		Pointer: scalePath + "/requests", Type: IntegerField, Status: Refused,
		Until: "the data plane counts connections and not the requests in them; use connections", Doc: "Requests per second.",
	},
	{
		Pointer: scalePath + "/prometheus", Type: ObjectField, Status: Refused,
		Until: "clusters do not query Prometheus yet; use cpu, memory or connections", Doc: "A query whose value scales the service.",
	},
	{
		Pointer: scalePath + "/idle_time", Type: IntegerField, Unit: "s", Max: MaxIdleTime, Default: itoa(DefaultIdleTime),
		Doc:  "With `min: 0`, how long the last running instance must have had no open connection and received no packet before it is stopped. What cannot be observed counts as not idle. 0 means the default.",
		Rule: "0 or at least " + itoa(MinIdleTime),
	},
	{
		Pointer: scalePath + "/stabilisation_up", Type: IntegerField, Unit: "s", Max: MaxStabilisation, Default: "0",
		Doc: "The smallest number that was wanted within this time counts when the number grows.",
	},
	{
		Pointer: scalePath + "/stabilisation_down", Type: IntegerField, Unit: "s", Max: MaxStabilisation, Default: itoa(DefaultStabilisationDown),
		Doc: "The largest number that was wanted within this time counts when the number shrinks.",
	},
}

// scaleRule checks `scale` against the rest of its service.
func scaleRule(c checker, at string, service *value) {
	v := service.get("scale")
	if v.kind != ObjectField {
		return
	}
	for _, name := range []string{"replicas", "one_shot", "exclusive", "schedule", "completions", "parallelism"} {
		given := service.get(name)
		if name == "replicas" && given.kind != "" || name != "replicas" && !neutral(given) {
			c.fault(at+"/"+name, "leave out "+name+" or scale", "%s cannot be combined with scale", name)
		}
	}
	if virt := service.get("virtualization").text; virt == "process" || virt == "microvm" || virt == "unikernel" {
		c.fault(at+"/scale", "use virtualization: container", "virtualization %s cannot have scale: the node does not see the load of its connections", virt)
	}
	for i, vol := range service.get("volumes").items {
		if kind := cmp.Or(vol.get("type").text, vol.get("csi_driver").text); kind != VolumeEphemeral && kind != VolumeTmpfs {
			c.fault(at+"/volumes/"+itoa(i)+"/type", "use type ephemeral, or leave scale out", "a service with scale cannot have volumes that outlive an instance (%s): its instances come and go", shorten(kind))
		}
	}
	has := func(name string) bool { return !neutral(v.get(name)) }
	low, high := v.get("min"), v.get("max")
	least, most := whole(low, 1), whole(high, 0)
	if most > 0 && least > most {
		c.fault(at+"/scale/min", "at most max", "min is %d, above max (%d)", least, most)
	}
	if most > 1 && !slices.ContainsFunc([]string{"cpu", "memory", "connections"}, has) {
		c.fault(at+"/scale/max", "add cpu, memory or connections, or set max: 1", "max is %d, and nothing says when more than %d instances are needed", most, max(1, least))
	}
	if has("cpu") && neutral(service.get("vcpus")) {
		c.fault(at+"/scale/cpu", "add vcpus", "cpu is a share of vcpus, which is missing")
	}
	if has("memory") && neutral(service.get("memory")) {
		c.fault(at+"/scale/memory", "add memory", "memory is a share of the memory of the service, which is missing")
	}
	if least == 0 && !neutral(service.get("port")) {
		c.fault(at+"/scale/min", "leave out port, or set min: 1", "min is 0, but packets to a port of a node cannot wake an instance")
	}
	if service.get("network").text == NetworkAny {
		switch {
		case least == 0:
			c.fault(at+"/scale/min", "leave out network, or set min: 1", "min is 0, but a service without the overlay network has no address that could wake it")
		case has("connections"):
			c.fault(at+"/scale/connections", "leave out network or connections", "connections are counted on the overlay network only")
		}
	}
	if n := whole(v.get("idle_time"), 0); n > 0 && n < MinIdleTime {
		c.fault(at+"/scale/idle_time", "0 or at least "+itoa(MinIdleTime)+" s", "idle_time is %d, too short to observe", n)
	}
}

// whole returns a whole number, or otherwise if v is absent or has a fault already.
func whole(v *value, otherwise int) int {
	n, err := strconv.Atoi(v.text)
	if v.kind != NumberField || err != nil {
		return otherwise
	}
	return n
}
