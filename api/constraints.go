package api

import (
	"slices"
	"strings"
)

// This file holds all that defines a constraint of the SLA: its Go type, the keys of each
// type of constraint, and the fields as documents have them. constraintrules.go holds the
// checks that the tables cannot express.

// The types of constraints.
const (
	ConstrainDirect   = "direct"   // to clusters or nodes by name
	ConstrainClusters = "clusters" // to clusters by name
	ConstrainAddons   = "addons"   // to nodes that have them
	ConstrainGeo      = "geo"      // to a circle (Location, Threshold), an Area or a Polygon
	ConstrainLatency  = "latency"  // to an Area, a Service or a Target (a user), within Threshold
	ConstrainLabels   = "labels"   // to nodes whose labels match
	ConstrainSpread   = "spread"   // at most Limit instances of the service per By
	// ConstrainAntiAffinity keeps it away from the instances of other Services, per By.
	// Documents write anti_affinity; the value is the type's former name, which stores,
	// messages and clusters of the previous release use. ParseSLA accepts both.
	ConstrainAntiAffinity = "apart"
)

// Constraint restricts where a service may run.
type Constraint struct {
	Type    string   `json:"type"`
	Cluster string   `json:"cluster,omitempty"` // direct: one name, or several separated by ";"
	Node    string   `json:"node,omitempty"`    // direct: one name, or several separated by ";"
	Allowed []string `json:"allowed,omitempty"` // clusters: names
	Needs   []string `json:"needs,omitempty"`   // addons: names, all of them

	Area      string   `json:"area,omitempty"`      // geo, latency: an area's name or a country's code, as nodes have them
	Location  string   `json:"location,omitempty"`  // geo: "latitude,longitude", see ParseGeo
	Polygon   []string `json:"polygon,omitempty"`   // geo: corners as Location; the last joins the first
	Service   string   `json:"service,omitempty"`   // latency: a service of the application, "name.namespace"
	Target    string   `json:"target,omitempty"`    // latency: a user's host name or address, with a port for TCP
	Threshold float64  `json:"threshold,omitempty"` // geo: km; latency: ms of round trip

	// Rigidness is how many seconds the constraint may be violated before the instance moves;
	// 0 means DefaultRigidness. Documents write it as tolerate, or as rigidness, a share.
	Rigidness float64 `json:"rigidness,omitempty"`
	// Share is the document's rigidness, in (0, 1]: the share of the checks of the last
	// five minutes in which the constraint must be met. 0: Rigidness applies to each
	// violation by itself.
	Share float64 `json:"share,omitempty"`
	// ConvergenceTime is how many seconds placement may search and measure before it uses the
	// best result so far; 0 means DefaultConvergence.
	ConvergenceTime float64 `json:"convergence_time,omitempty"`

	Labels   []string `json:"labels,omitempty"`   // labels: "key=value", "key!=value", "key" or "!key", all of them
	By       string   `json:"by,omitempty"`       // spread, anti-affinity: "node" (default), "cluster", or a label's key
	Limit    int      `json:"limit,omitempty"`    // spread; 0 means 1
	Services []string `json:"services,omitempty"` // anti-affinity: services of the application, "name.namespace"
}

// Defaults, in seconds.
const (
	DefaultRigidness   = 60.0
	DefaultConvergence = 5.0
)

// antiAffinity is the documented name of ConstrainAntiAffinity.
const antiAffinity = "anti_affinity"

// constraintKinds lists the types of constraints under their documented names, with the
// keys of each beside "type": those of which it takes exactly one, those that it requires
// and those that it may have.
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

// documented returns the documented name of a type of constraint.
func documented(kind string) string {
	if kind == ConstrainAntiAffinity {
		return antiAffinity
	}
	return kind
}

// constraintTypes returns the documented names of the types.
func constraintTypes() (names []string) {
	for _, k := range constraintKinds {
		names = append(names, k.name)
	}
	return names
}

// typesWith returns the types of constraints that have the key.
func typesWith(key string) (names []string) {
	for _, k := range constraintKinds {
		if slices.Contains(slices.Concat(k.oneOf, k.needs, k.may), key) {
			names = append(names, k.name)
		}
	}
	return names
}

// only returns the prefix of a key's description: the types that have the key.
func only(key string) string { return "`" + strings.Join(typesWith(key), "`, `") + "`: " }

// constraintFields are the fields of a constraint, for the parser, the schema and the reference.
var constraintFields = []Field{
	{
		Pointer: servicePath + "/constraints", Type: ArrayField, Status: Enforced, Max: 64,
		Doc: "Where it may run. Several narrow one another.", Rule: "they leave something to choose; no two of type `spread` with the same `by`",
	},
	{Pointer: constraintPath, Type: ObjectField, Status: Enforced, Doc: "One constraint."},
	{
		Pointer: constraintPath + "/type", Type: StringField, Status: Enforced, Required: true, Enum: constraintTypes(), Aliases: []string{ConstrainAntiAffinity},
		Doc: "What the constraint is about. Each type has the keys below that name it, and no others. `apart` is a former name of `anti_affinity` and is accepted.",
	},
	{
		Pointer: constraintPath + "/cluster", Type: StringField, Status: Enforced, Length: 4096,
		Doc: "`direct`: a cluster's name, or several separated by `;`.", Rule: "`direct` needs `cluster`, `node` or both",
	},
	{
		Pointer: constraintPath + "/node", Type: StringField, Status: Enforced, Length: 4096,
		Doc: "`direct`: a node's name, or several separated by `;`.",
	},
	{
		Pointer: constraintPath + "/allowed", Type: ArrayField, Status: Enforced, Max: 256,
		Doc: "`clusters`: the clusters that it may run in.", Rule: "`clusters` needs at least one",
	},
	{Pointer: constraintPath + "/allowed/*", Type: StringField, Status: Enforced, Pattern: machinePattern, Doc: "A cluster's name."},
	{
		Pointer: constraintPath + "/needs", Type: ArrayField, Status: Enforced, Max: 64,
		Doc: "`addons`: what its node must offer, all of it.", Rule: "`addons` needs at least one, none twice",
	},
	{Pointer: constraintPath + "/needs/*", Type: StringField, Status: Enforced, Pattern: addonPattern, Doc: "An addon's name, as nodes' operators call it; case counts."},
	{
		Pointer: constraintPath + "/area", Type: StringField, Status: Enforced, Pattern: areaPattern,
		Doc:  "`geo`: its node is in that area. `latency`: it is near that area's nodes. A place's name or a country's code, as nodes' operators write it: `munich`, `de`. Case does not count.",
		Rule: "`geo` needs exactly one of `area`, `location` and `polygon`; `latency` exactly one of `area`, `service` and `target`",
	},
	{
		Pointer: constraintPath + "/location", Type: StringField, Status: Enforced, Length: 64,
		Doc: "`geo`: its node is at most `threshold` km from here.", Rule: "degrees of WGS 84: `48.14N,11.58E`, or as Oakestra has it longitude before latitude: `11.58,48.14`",
	},
	{
		Pointer: constraintPath + "/polygon", Type: ArrayField, Status: Enforced, Max: 64,
		Doc:  "`geo`: its node is within these corners, the last of which joins the first. Sides are straight on a map of latitude by longitude and go the short way round the earth.",
		Rule: "3 to 64 corners that enclose something, within less than 180 degrees of longitude and around no pole",
	},
	{Pointer: constraintPath + "/polygon/*", Type: StringField, Status: Enforced, Length: 64, Doc: "A corner: `48.14N,11.58E`.", Rule: "with N or S and E or W, so that latitude and longitude are not confused"},
	{
		Pointer: constraintPath + "/service", Type: StringField, Status: Enforced, Pattern: maybePattern,
		Doc: "`latency`: it is near the nearest instance of this service of the application, `name.namespace`, or the name alone where it is unique.", Rule: "another service of the application",
	},
	{
		Pointer: constraintPath + "/target", Type: StringField, Status: Enforced, Length: 262,
		Doc:  "`latency`: it is near this user: a host name or an address, which nodes measure by ICMP or, with `:port`, by connecting. The cluster's operator says which addresses may be measured; private ones may not unless allowed.",
		Rule: "`host`, `host:port`, `198.51.100.7`, `[2001:db8::7]:443`; no URL",
	},
	{
		Pointer: constraintPath + "/threshold", Type: NumberField, Status: Enforced, Unit: "ms or km", Max: 60_000,
		Doc: "`latency`: the longest round trip, ms. `geo` with `location`: the greatest distance, km.", Rule: "above 0; at most 20015 km, half the way round the earth",
	},
	{
		Pointer: constraintPath + "/rigidness", Type: NumberField, Status: Enforced, Unit: "of checks", Max: 1, Fix: rigidnessFix, Default: "`tolerate`",
		Doc: only("rigidness") + rigidnessDoc,
	},
	{
		Pointer: constraintPath + "/tolerate", Type: StringField, Status: Enforced, Pattern: tolerateText, Default: defaultRigid,
		Doc: only("tolerate") + tolerateDoc, Rule: "1ms to 24h; not with `rigidness`",
	},
	{
		Pointer: constraintPath + "/convergence_time", Type: NumberField, Status: Enforced, Unit: "s", Max: MaxConvergence, Default: defaultConverg,
		Doc: only("convergence_time") + convergenceDoc,
	},
	{
		Pointer: constraintPath + "/labels", Type: ArrayField, Status: Enforced, Max: 64,
		Doc: "`labels`: what its node's labels must be, all of it.", Rule: "`labels` needs at least one; they do not contradict one another",
	},
	{
		Pointer: constraintPath + "/labels/*", Type: StringField, Status: Enforced, Pattern: labelPattern,
		Doc: "`key=value`, `key!=value` (another value or none), `key` (any value) or `!key` (no such label).",
	},
	{
		Pointer: constraintPath + "/by", Type: StringField, Status: Enforced, Pattern: byPattern, Default: "`node`",
		Doc: only("by") + "counted per `node`, per `cluster`, or per value of this label of the cluster's nodes (`rack`); nodes without the label count in none.",
	},
	{
		Pointer: constraintPath + "/limit", Type: IntegerField, Status: Enforced, Max: MaxReplicas, Default: "1",
		Doc: "`spread`: at most so many instances of the service in each; 0 means the default.",
	},
	{
		Pointer: constraintPath + "/services", Type: ArrayField, Status: Enforced, Max: MaxServices,
		Doc: only("services") + "it is never together with an instance of these services of the application.", Rule: "`anti_affinity` needs at least one, none twice; other services of the application",
	},
	{Pointer: constraintPath + "/services/*", Type: StringField, Status: Enforced, Pattern: siblingPattern, Doc: "`name.namespace`, or the name alone where it is unique."},
}
