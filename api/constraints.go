package api

import (
	"slices"
	"strings"
)

// This file defines the constraints of the SLA: the Go type, the keys of each type of constraint,
// and the fields of documents. constraintrules.go has the checks that do not fit into the tables.

// The types of constraints, and where each allows instances.
const (
	ConstrainDirect   = "direct"   // to clusters or nodes by name
	ConstrainClusters = "clusters" // to clusters by name
	ConstrainAddons   = "addons"   // to nodes that have all Needs
	ConstrainGeo      = "geo"      // to a circle (Location, Threshold), an Area or a Polygon
	ConstrainLatency  = "latency"  // to an Area, a Service or a Target (a user), within Threshold
	ConstrainLabels   = "labels"   // to nodes whose labels match
	ConstrainSpread   = "spread"   // at most Limit instances of the service per By
	// ConstrainAntiAffinity keeps instances away from the instances of other Services, per By.
	// Documents write anti_affinity. The value is the former name, which stores, messages and
	// clusters of the previous release use. ParseSLA accepts both.
	ConstrainAntiAffinity = "apart"
)

// Constraint restricts where a service may run.
type Constraint struct {
	Type    string   `json:"type"`
	Cluster string   `json:"cluster,omitempty"` // direct: one name, or several separated by ";"
	Node    string   `json:"node,omitempty"`    // direct: one name, or several separated by ";"
	Allowed []string `json:"allowed,omitempty"` // clusters: names
	Needs   []string `json:"needs,omitempty"`   // addons: names, all of them

	Area      string   `json:"area,omitempty"`      // geo, latency: one of NodeInfo.Areas
	Location  string   `json:"location,omitempty"`  // geo: "latitude,longitude", see ParseGeo
	Polygon   []string `json:"polygon,omitempty"`   // geo: corners as Location; the last joins the first
	Service   string   `json:"service,omitempty"`   // latency: a service of the application, "name.namespace"
	Target    string   `json:"target,omitempty"`    // latency: a user's host name or address, with a port for TCP
	Threshold float64  `json:"threshold,omitempty"` // geo: km; latency: ms of round trip

	// Rigidness is how many seconds the constraint may be violated before the instance moves; 0
	// means DefaultRigidness. ParseSLA computes it from the document's tolerate or rigidness.
	Rigidness float64 `json:"rigidness,omitempty"`
	// Share is the document's rigidness, in (0, 1]: the share of the checks of the last five
	// minutes in which the constraint must be met. 0: Rigidness applies to each violation
	// separately.
	Share float64 `json:"share,omitempty"`
	// ConvergenceTime is how many seconds placement may search and measure before it uses the
	// best result so far; 0 means DefaultConvergence.
	ConvergenceTime float64 `json:"convergence_time,omitempty"`

	Labels   []string `json:"labels,omitempty"`   // labels: "key=value", "key!=value", "key" or "!key", all of them
	By       string   `json:"by,omitempty"`       // spread, anti-affinity: "node" (default), "cluster", or a label's key
	Limit    int      `json:"limit,omitempty"`    // spread; 0 means 1
	Services []string `json:"services,omitempty"` // anti-affinity: services of the application, "name.namespace"
}

const (
	DefaultRigidness   = 60.0
	DefaultConvergence = 5.0
)

// antiAffinity is the documented name of ConstrainAntiAffinity.
const antiAffinity = "anti_affinity"

// constraintKinds lists the types of constraints by their documented names, with their keys in
// addition to "type": keys of which exactly one is required, required keys, and optional keys.
var constraintKinds = []constraintKind{
	{name: ConstrainDirect, may: []string{"cluster", "node"}}, // at least one of both
	{name: ConstrainClusters, needs: []string{"allowed"}},
	{name: ConstrainAddons, needs: []string{"needs"}, may: []string{"rigidness", "tolerate"}},
	{name: ConstrainGeo, oneOf: []string{"area", "location", "polygon"}, may: []string{"threshold", "rigidness", "tolerate", "convergence_time"}},
	{name: ConstrainLatency, oneOf: []string{"area", "service", "target"}, needs: []string{"threshold"}, may: []string{"rigidness", "tolerate", "convergence_time"}},
	{name: ConstrainLabels, needs: []string{"labels"}, may: []string{"rigidness", "tolerate"}},
	{name: ConstrainSpread, may: []string{"by", "limit", "rigidness", "tolerate"}},
	{name: antiAffinity, needs: []string{"services"}, may: []string{"by", "rigidness", "tolerate"}},
}

type constraintKind struct {
	name              string
	oneOf, needs, may []string
}

// documented returns the documented name of a constraint's type.
func documented(kind string) string {
	if kind == ConstrainAntiAffinity {
		return antiAffinity
	}
	return kind
}

func constraintTypes() (names []string) {
	for _, k := range constraintKinds {
		names = append(names, k.name)
	}
	return names
}

func typesWith(key string) (names []string) {
	for _, k := range constraintKinds {
		if slices.Contains(slices.Concat(k.oneOf, k.needs, k.may), key) {
			names = append(names, k.name)
		}
	}
	return names
}

// only returns the prefix of a key's description: the types of constraints that have the key.
func only(key string) string { return "`" + strings.Join(typesWith(key), "`, `") + "`: " }

var constraintFields = []Field{
	{
		Pointer: servicePath + "/constraints", Type: ArrayField, Max: 64,
		Doc: "Where it may run. All constraints must be met.", Rule: "together they must be satisfiable; no two of type `spread` with the same `by`",
	},
	{Pointer: constraintPath, Type: ObjectField, Doc: "One constraint."},
	{
		Pointer: constraintPath + "/type", Type: StringField, Required: true, Enum: constraintTypes(), Aliases: []string{ConstrainAntiAffinity},
		Doc: "The type of constraint. Each type has only those keys below that mention it. `apart` is the former name of `anti_affinity` and is accepted.",
	},
	{
		Pointer: constraintPath + "/cluster", Type: StringField, Length: 4096,
		Doc: "`direct`: a cluster's name, or several separated by `;`. Case does not matter.", Rule: "`direct` needs `cluster`, `node` or both",
	},
	{
		Pointer: constraintPath + "/node", Type: StringField, Length: 4096,
		Doc: "`direct`: a node's name, or several separated by `;`. Case does not matter: the host name that a node reports is its name in lower case.",
	},
	{
		Pointer: constraintPath + "/allowed", Type: ArrayField, Max: 256,
		Doc: "`clusters`: the clusters that it may run in.", Rule: "`clusters` needs at least one",
	},
	{Pointer: constraintPath + "/allowed/*", Type: StringField, Pattern: machinePattern, Doc: "A cluster's name."},
	{
		Pointer: constraintPath + "/needs", Type: ArrayField, Max: 64,
		Doc: "`addons`: the addons that its node must offer.", Rule: "`addons` needs at least one, none twice",
	},
	{Pointer: constraintPath + "/needs/*", Type: StringField, Pattern: addonPattern, Doc: "An addon's name, as operators of nodes configure it. Case matters."},
	{
		Pointer: constraintPath + "/area", Type: StringField, Pattern: areaPattern,
		Doc:  "`geo`: its node is in this area. `latency`: it is near the nodes of this area. The name of a place or the code of a country, as operators of nodes configure it: `munich`, `de`. Case does not matter.",
		Rule: "`geo` needs exactly one of `area`, `location` and `polygon`; `latency` exactly one of `area`, `service` and `target`",
	},
	{
		Pointer: constraintPath + "/location", Type: StringField, Length: 64,
		Doc: "`geo`: its node is at most `threshold` km from this location.", Rule: "degrees of WGS 84: `48.14N,11.58E`, or as in Oakestra longitude before latitude: `11.58,48.14`",
	},
	{
		Pointer: constraintPath + "/polygon", Type: ArrayField, Max: 64,
		Doc:  "`geo`: its node is within the polygon of these corners; the last is joined to the first. Sides are straight lines of latitude over longitude and go the shorter way around the earth.",
		Rule: "3 to 64 corners that enclose an area of less than 180 degrees of longitude without a pole",
	},
	{Pointer: constraintPath + "/polygon/*", Type: StringField, Length: 64, Doc: "A corner: `48.14N,11.58E`.", Rule: "with N or S and E or W"},
	{
		Pointer: constraintPath + "/service", Type: StringField, Pattern: maybePattern,
		Doc: "`latency`: it is near the nearest instance of this service of the application: `name.namespace`, or only the name if it is unique.", Rule: "another service of the application",
	},
	{
		Pointer: constraintPath + "/target", Type: StringField, Length: 262,
		Doc:  "`latency`: it is near this user: a host name or an address, which nodes probe by ICMP or, with `:port`, by a TCP connection. The cluster's operator configures which addresses may be probed; by default private addresses may not.",
		Rule: "`host`, `host:port`, `198.51.100.7`, `[2001:db8::7]:443`; no URL",
	},
	{
		Pointer: constraintPath + "/threshold", Type: NumberField, Unit: "ms or km", Max: 60_000,
		Doc: "`latency`: the maximum round trip, ms. `geo` with `location`: the maximum distance, km.", Rule: "above 0; at most 20015 km, half the circumference of the earth",
	},
	{
		Pointer: constraintPath + "/rigidness", Type: NumberField, Unit: "of checks", Max: 1, Fix: rigidnessFix, Default: "`tolerate`",
		Doc: only("rigidness") + rigidnessDoc,
	},
	{
		Pointer: constraintPath + "/tolerate", Type: StringField, Pattern: tolerateText, Default: defaultRigid,
		Doc: only("tolerate") + tolerateDoc, Rule: "1ms to 24h; not with `rigidness`",
	},
	{
		Pointer: constraintPath + "/convergence_time", Type: NumberField, Unit: "s", Max: MaxConvergence, Default: defaultConverg,
		Doc: only("convergence_time") + convergenceDoc,
	},
	{
		Pointer: constraintPath + "/labels", Type: ArrayField, Max: 64,
		Doc: "`labels`: selectors, all of which its node's labels must match.", Rule: "`labels` needs at least one; they must not contradict each other",
	},
	{
		Pointer: constraintPath + "/labels/*", Type: StringField, Pattern: labelPattern,
		Doc: "`key=value`, `key!=value` (another value or none), `key` (any value) or `!key` (no such label).",
	},
	{
		Pointer: constraintPath + "/by", Type: StringField, Pattern: byPattern, Default: "`node`",
		Doc: only("by") + "the domain: `node`, `cluster`, or the key of a label of nodes (`rack`), each value of which is a domain; nodes without the label are in none.",
	},
	{
		Pointer: constraintPath + "/limit", Type: IntegerField, Max: MaxReplicas, Default: "1",
		Doc: "`spread`: the maximum number of the service's instances in a domain; 0 means the default.",
	},
	{
		Pointer: constraintPath + "/services", Type: ArrayField, Max: MaxServices,
		Doc: only("services") + "services of the application whose instances are never in the same domain.", Rule: "`anti_affinity` needs at least one, none twice; other services of the application",
	},
	{Pointer: constraintPath + "/services/*", Type: StringField, Pattern: siblingPattern, Doc: "`name.namespace`, or only the name if it is unique."},
}
