package api

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Scale lets the clusters of a service choose its number of running instances. The root assigns Max
// instances. Those with numbers below Min always run; the others sleep until they are needed. With
// Min 0, the first packet to one of the service's addresses wakes an instance.
//
// CPU, Memory, Connections and Requests are the wanted means per running instance; 0 or nil: not
// considered. The largest number that one of them or Prometheus asks for counts.
type Scale struct {
	Min         *int `json:"min,omitempty"` // nil: 1
	Max         int  `json:"max"`
	CPU         int  `json:"cpu,omitempty"`         // percent of vcpus
	Memory      int  `json:"memory,omitempty"`      // percent of memory
	Connections int  `json:"connections,omitempty"` // open TCP connections to an instance

	Requests   *RequestGoal `json:"requests,omitempty"`
	Prometheus *QueryGoal   `json:"prometheus,omitempty"`

	IdleTime          int  `json:"idle_time,omitempty"`          // s; 0: DefaultIdleTime
	StabilisationUp   int  `json:"stabilisation_up,omitempty"`   // s
	StabilisationDown *int `json:"stabilisation_down,omitempty"` // s; nil: DefaultStabilisationDown
}

// RequestGoal is a wanted mean of requests per second to a running instance. The instance counts them
// itself, in a counter that it exposes in the text format of Prometheus.
type RequestGoal struct {
	Target  int    `json:"target"`
	Port    int    `json:"port"`           // of HTTP in the instance
	Path    string `json:"path,omitempty"` // empty: DefaultMetricsPath
	Counter string `json:"counter"`        // its series are added up
}

// At returns the path.
func (g *RequestGoal) At() string { return cmp.Or(g.Path, DefaultMetricsPath) }

// QueryGoal is a Prometheus expression. The service gets its value divided by Target instances.
type QueryGoal struct {
	Query  string `json:"query"` // package internal/promexpr reads it
	Target int    `json:"target"`
}

// ScaleStanding is what scaling does with a service in one cluster.
type ScaleStanding struct {
	Assigned int           `json:"assigned"` // instances that the cluster may run
	Awake    int           `json:"awake"`    // that are not dormant
	Running  int           `json:"running"`  // that take requests
	Metrics  []ScaleMetric `json:"metrics,omitempty"`
	Why      string        `json:"why,omitempty"`   // of the last change of the number
	Fault    string        `json:"fault,omitempty"` // why something that it scales by is not known
	Waits    string        `json:"waits,omitempty"` // why packets wait although no instance is being started for them
	Idle     *float64      `json:"idle,omitempty"`  // s, of the instance that was active last; nil: not known
}

// ScaleMetric is a measure of load with its target. Value is the mean per running instance, or the value
// of the expression.
type ScaleMetric struct {
	Name   string   `json:"name"`
	Unit   string   `json:"unit,omitempty"`
	Target float64  `json:"target"`
	Value  *float64 `json:"value,omitempty"` // nil: not known
	Wants  int      `json:"wants,omitempty"` // instances, before stabilisation
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

	DefaultMetricsPath = "/metrics"
	MaxExpression      = 1024 // bytes of an expression
	MaxQueryTarget     = 1_000_000_000
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
		Rule: "not with `replicas`, `one_shot`, `exclusive`, volumes of type `local` or `virtualization: process`, `microvm` or `unikernel`; at least one of `cpu`, `memory`, `connections`, `requests` and `prometheus` unless `max` is 1",
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
		Pointer: scalePath + "/requests", Type: ObjectField,
		Doc: "The wanted mean of requests per second to an instance. The instance counts them itself: the node reads a counter from it every 5 s, in the text format of Prometheus. If it cannot, nothing is stopped.",
	},
	{Pointer: scalePath + "/requests/target", Type: IntegerField, Unit: "per second", Required: true, Min: 1, Max: MaxConnectionsGoal, Doc: "The wanted mean."},
	{Pointer: scalePath + "/requests/port", Type: IntegerField, Required: true, Min: 1, Max: 65535, Doc: "The port at which the instance answers HTTP."},
	{
		Pointer: scalePath + "/requests/path", Type: StringField, Length: 256, Default: "`" + DefaultMetricsPath + "`",
		Doc: "The path of the metrics.", Rule: "it begins with `/`, without spaces and control characters",
	},
	{
		Pointer: scalePath + "/requests/counter", Type: StringField, Required: true, Length: 128,
		Doc: "The name of the counter, such as `http_requests_total`. The counts of all its labels are added up. A count that is smaller than before, after a restart, is a new beginning.", Rule: "letters, digits, `_` and `:`, not a digit first",
	},
	{
		Pointer: scalePath + "/prometheus", Type: ObjectField,
		Doc: "A Prometheus expression. Its value divided by `target`, rounded up, is the number of instances of the service; of several clusters each has its part of it. The clusters evaluate it every 15 s on the Prometheus server that their operators configured (key `prometheus`), with the tenant's series only. Other clusters are left out (constraint `features`).",
	},
	{
		Pointer: scalePath + "/prometheus/query", Type: StringField, Required: true, Length: MaxExpression,
		Doc: "PromQL whose value is one number, such as `sum(rate(http_requests_total[1m]))`. The matcher on the tenant is added to every selector.", Rule: "at most 8 selectors, ranges and offsets up to 1 h, no subqueries, no `@`",
	},
	{Pointer: scalePath + "/prometheus/target", Type: IntegerField, Required: true, Min: 1, Max: MaxQueryTarget, Doc: "The part of the value that one instance can take."},
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

var scaleGoals = []string{"cpu", "memory", "connections", "requests", "prometheus"}

// isCounter reports whether s is the name of a Prometheus metric.
func isCounter(s string) bool {
	for i, r := range s {
		if r != '_' && r != ':' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9' || i == 0) {
			return false
		}
	}
	return s != ""
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
		c.fault(at+"/scale", "use virtualization: container, or replicas, which treeline scale changes", "virtualization %s cannot have scale: the node does not see its connections, nor whether it is idle", virt)
	}
	for i, vol := range service.get("volumes").items {
		if vol.ofCSI() && vol.shared() {
			continue
		}
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
	if most > 1 && !slices.ContainsFunc(scaleGoals, has) {
		c.fault(at+"/scale/max", "add cpu, memory, connections, requests or prometheus, or set max: 1", "max is %d, and nothing says when more than %d instances are needed", most, max(1, least))
	}
	if has("cpu") && neutral(service.get("vcpus")) && neutral(service.get("vcpu")) {
		c.fault(at+"/scale/cpu", "add vcpus", "cpu is a share of vcpus, which is missing")
	}
	if has("memory") && neutral(service.get("memory")) {
		c.fault(at+"/scale/memory", "add memory", "memory is a share of the memory of the service, which is missing")
	}
	if least == 0 && !neutral(service.get("port")) {
		c.fault(at+"/scale/min", "leave out port, or set min: 1", "min is 0, but packets to a port of a node cannot wake an instance")
	}
	if name := v.get("requests").get("counter"); name.kind == StringField && !isCounter(name.text) {
		c.fault(at+"/scale/requests/counter", "the name of a Prometheus counter, such as http_requests_total", "%s is not the name of a metric", shorten(name.text))
	}
	if path := v.get("requests").get("path").text; path != "" && (path[0] != '/' || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r > '~' })) {
		c.fault(at+"/scale/requests/path", "a path such as "+DefaultMetricsPath, "%s is not a path", shorten(path))
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
