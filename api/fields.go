package api

import (
	"fmt"
	"slices"
	"strings"
)

// FieldStatus says how Treeline treats a field of the SLA.
type FieldStatus string

// The statuses of a field. No field is accepted and ignored.
const (
	Enforced      FieldStatus = "enforced"      // what it says is done
	Informational FieldStatus = "informational" // kept or checked, and changes nothing
	Refused       FieldStatus = "refused"       // any value but a neutral one is a fault; see Field.Until
)

// FieldType is the JSON type of a field's value.
type FieldType string

// The types of fields.
const (
	ObjectField  FieldType = "object"
	ArrayField   FieldType = "array"
	StringField  FieldType = "string"
	IntegerField FieldType = "integer"
	NumberField  FieldType = "number"
	BooleanField FieldType = "boolean"
)

// Field describes one field. The parser, the JSON schema and the reference in docs are made
// from it.
type Field struct {
	Pointer  string // JSON pointer; "*" stands for any index of an array
	Type     FieldType
	Status   FieldStatus
	Required bool
	Until    string // Refused: when it will be honoured, or what to write instead
	Doc      string // what it means, one or two sentences
	Unit     string // "MiB", "vCPU", "s"; empty: none
	Default  string // what holds when it is absent; empty: nothing

	Min, Max int      // of numbers, and of the count of an array's items; 0 for a Max: unbounded
	Length   int      // the most bytes of a string; 0: see Pattern
	Pattern  string   // what a string must match
	Enum     []string // the strings that are allowed; empty: any
	Aliases  []string // former strings that are accepted beside Enum
	Rule     string   // what is checked beyond that, in words
	Text     string   // of numbers: the pattern of strings that may stand instead; empty: none
	TextDoc  string   // those strings in words
	Fix      string   // what to write instead of a value that is refused; empty: see the bounds
}

// Name returns the last part of the field's pointer.
func (f Field) Name() string { return afterLast(f.Pointer, '/') }

// Bounds returns the allowed values in words, with code between backticks.
func (f Field) Bounds() string {
	var parts []string
	switch {
	case f.Type == ArrayField && f.Min > 0:
		parts = append(parts, fmt.Sprintf("%d to %d entries", f.Min, f.Max))
	case f.Type == ArrayField:
		parts = append(parts, fmt.Sprintf("at most %d entries", f.Max))
	case f.Max > 0:
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("%d to %d %s", f.Min, f.Max, f.Unit)))
	}
	if f.Length > 0 {
		parts = append(parts, fmt.Sprintf("at most %d bytes", f.Length))
	}
	var values []string
	for _, e := range f.Enum {
		if e != "" {
			values = append(values, "`"+e+"`")
		}
	}
	if len(values) > 0 {
		parts = append(parts, strings.Join(values, ", "))
	}
	if f.Pattern != "" {
		parts = append(parts, "`"+f.Pattern+"`")
	}
	if f.TextDoc != "" {
		parts = append(parts, "or "+f.TextDoc)
	}
	if f.Rule != "" {
		parts = append(parts, f.Rule)
	}
	return strings.Join(parts, "; ")
}

// Texts for Field.Until.
const untilVolumes = "until volumes arrive"

// The bounds of a document. Fields has the others.
const (
	MaxSLABytes  = 1 << 20 // of a document, before anything is parsed
	MaxSLADepth  = 32      // of objects and arrays within one another
	MaxSLAValues = 100_000 // objects, arrays and scalars
	MaxServices  = 256     // of an application
	MaxReplicas  = 10_000  // of a service
	MaxAttempts  = 1000    // of a one-shot
	MaxDevices   = 64      // that an instance has to itself, of all kinds
)

const (
	namePart        = `[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,28}[a-zA-Z0-9])?`
	namePattern     = `^` + namePart + `$`
	runtimePattern  = `^[a-z0-9][a-z0-9._-]{0,62}$`
	envPattern      = `^[A-Za-z_][A-Za-z0-9_]*=`
	platformPattern = `^(linux/[a-z0-9]+)?$`
	tolerateText    = `^(?:` + durationPart + `)?$`
	addressPattern  = `^(auto|(?:[0-9]{1,3}\.){3}[0-9]{1,3})?$`
	tenantPart      = `(?:[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?/)`
	objectPart      = namePart + `\.` + namePart + `(?:\.` + namePart + `\.` + namePart + `)?`
	callerPattern   = `^(?:app|tenant|none|` + tenantPart + `{0,8}` + objectPart + `)$`
	calleePattern   = `^` + tenantPart + `{1,8}` + objectPart + `$`
	machinePattern  = `^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$`
	devicePattern   = `^[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?(?:/[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?)?$`
	addonPattern    = `^[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$`
	areaPattern     = `^(?:[A-Za-z0-9](?:[A-Za-z0-9 ._/-]{0,61}[A-Za-z0-9])?)?$`
	labelKey        = `[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?`
	labelPattern    = `^(?:!` + labelKey + `|` + labelKey + `(?:!?=[A-Za-z0-9 ._/:@+,-]{0,128})?)$`
	byPattern       = `^(?:` + labelKey + `)?$`
	siblingName     = namePart + `(?:\.` + namePart + `)?`
	siblingPattern  = `^` + siblingName + `$`
	maybePattern    = `^(?:` + siblingName + `)?$`

	appPath        = "/applications/*"
	servicePath    = appPath + "/microservices/*"
	constraintPath = servicePath + "/constraints/*"
	addressesPath  = servicePath + "/addresses"
	linkPath       = servicePath + "/connectivity/*"
	boundPath      = linkPath + "/con_constraints/*"

	rigidnessDoc   = "In what share of the last five minutes' checks it must be kept, or the instance moves to a place that keeps it, make before break: 1 at the first violation, 0.9 after 30 s. 0 says nothing."
	tolerateDoc    = "For how long it may be violated before the instance moves, instead of `rigidness`: `60s` (Treeline's own)."
	rigidnessFix   = "a share in (0, 1], as in Oakestra; for a time write tolerate: 60s"
	bandwidthDoc   = "a string with its unit: `10Mbit`, `500kbit`, `1Gbit`"
	bandwidthFix   = "a whole number of kbit/s, as in Oakestra, or a string with its unit: 10Mbit"
	convergenceDoc = "How long placement may search and measure before it takes the best that it found; 0 means the default."
	defaultRigid   = "`60s`"
	defaultConverg = "5"
)

// Arches are the values of `arch`, as Go names processors.
var Arches = []string{"amd64", "arm64", "arm", "386", "riscv64", "ppc64le", "s390x", "loong64", "mips64le"}

// Fields lists every field of the Oakestra SLA v2.0 and those that Treeline adds. It is
// read only.
var Fields = slices.Concat(fieldsBeforeConstraints, constraintFields, fieldsAfterConstraints)

var fieldsBeforeConstraints = []Field{
	{
		Pointer: "", Type: ObjectField, Status: Enforced, Required: true,
		Doc: "The document, JSON or YAML, at most 1 MiB.",
	},
	{
		Pointer: "/sla_version", Type: StringField, Status: Enforced, Required: true, Enum: []string{"v2.0"},
		Doc: "The version of this format.",
	},
	{
		Pointer: "/customerID", Type: StringField, Status: Informational, Length: 256,
		Doc: "The tenant that is signed in owns the application, whatever stands here.",
	},
	{
		Pointer: "/args", Type: ArrayField, Status: Refused, Until: "use `cmd` of each microservice",
		Doc: "Arguments for all services.",
	},
	{
		Pointer: "/applications", Type: ArrayField, Status: Enforced, Required: true, Min: 1, Max: 64,
		Doc: "The applications that should exist.", Rule: "no two of one name and namespace",
	},
	{Pointer: appPath, Type: ObjectField, Status: Enforced, Doc: "A set of services that belong together."},
	{
		Pointer: appPath + "/applicationID", Type: StringField, Status: Informational, Length: 256,
		Doc: "Given by the system; an application is found by its name and namespace.",
	},
	{
		Pointer: appPath + "/application_name", Type: StringField, Status: Enforced, Required: true, Pattern: namePattern,
		Doc: "The application's name, unique with its namespace within the tenant.", Rule: "not `of-tenant`",
	},
	{
		Pointer: appPath + "/application_namespace", Type: StringField, Status: Enforced, Required: true, Pattern: namePattern,
		Doc: "Tells applications of one name apart: `prod`, `test`.", Rule: "not `of-tenant`",
	},
	{
		Pointer: appPath + "/application_desc", Type: StringField, Status: Informational, Length: 4096,
		Doc: "A note for people, kept and shown.",
	},
	{
		Pointer: appPath + "/microservices", Type: ArrayField, Status: Enforced, Required: true, Max: MaxServices,
		Doc: "The application's services. One that is left out of a later SLA is withdrawn.", Rule: "no two of one name and namespace",
	},
	{Pointer: servicePath, Type: ObjectField, Status: Enforced, Doc: "One service: what runs, and what it needs of its place."},
	{
		Pointer: servicePath + "/microserviceID", Type: StringField, Status: Informational, Pattern: `^$`,
		Doc: "Given by the system, so it must be empty.",
	},
	{
		Pointer: servicePath + "/microservice_name", Type: StringField, Status: Enforced, Required: true, Pattern: namePattern,
		Doc: "The service's name, unique with its namespace within the application.", Rule: "not `of-tenant`",
	},
	{
		Pointer: servicePath + "/microservice_namespace", Type: StringField, Status: Enforced, Required: true, Pattern: namePattern,
		Doc: "Tells services of one name apart.", Rule: "not `of-tenant`",
	},
	{
		Pointer: servicePath + "/virtualization", Type: StringField, Status: Enforced, Required: true, Pattern: runtimePattern,
		Doc: "What runs it: `container` (also written `docker`), `process`, or the name of a runtime that some node offers, such as `runsc`. It runs on such nodes only.",
	},
	{
		Pointer: servicePath + "/code", Type: StringField, Status: Enforced, Required: true, Length: 1024,
		Doc:  "The image, as `docker pull` takes it, without a scheme. For `process`: the absolute path of the program; `file:///path` means the same.",
		Rule: "an image reference or, for `process`, an absolute path; no white space and no `..`",
	},
	{
		Pointer: servicePath + "/memory", Type: IntegerField, Status: Enforced, Unit: "MiB", Max: 16 << 20, Default: "the cluster's",
		Doc: "Reserved on the node and the limit in its cgroup. 0, or nothing, is what the operator of the cluster sets: unless that says otherwise 16 MiB are reserved and 512 MiB are the limit. More than the operator's `workload.max_memory` is refused there.",
	},
	{
		Pointer: servicePath + "/vcpus", Type: NumberField, Status: Enforced, Unit: "vCPU", Max: 4096, Default: "the cluster's",
		Doc: "Reserved on the node and the limit in its cgroup; fractions are allowed. 0, or nothing, is what the operator of the cluster sets: unless that says otherwise 0.01 are reserved and 1 is the limit. More than the operator's `workload.max_vcpus` is refused there.", Rule: "at most 3 decimals",
	},
	{
		Pointer: servicePath + "/cmd", Type: ArrayField, Status: Enforced, Max: 256, Default: "the image's own",
		Doc: "The program and its arguments.",
	},
	{Pointer: servicePath + "/cmd/*", Type: StringField, Status: Enforced, Length: 16 << 10, Doc: "One argument."},
	{
		Pointer: servicePath + "/environment", Type: ArrayField, Status: Enforced, Max: 256,
		Doc: "Environment variables, beside the image's own.", Rule: "no key twice",
	},
	{
		Pointer: servicePath + "/environment/*", Type: StringField, Status: Enforced, Length: 16 << 10, Pattern: envPattern,
		Doc: "`KEY=value`.",
	},
	{
		Pointer: servicePath + "/one_shot", Type: BooleanField, Status: Enforced, Default: "false",
		Doc: "It is done when it exits with 0, and is not started again. One that fails is started again, `max_attempts` times at most.",
	},
	{
		Pointer: servicePath + "/max_attempts", Type: IntegerField, Status: Enforced, Max: MaxAttempts, Default: itoa(DefaultAttempts),
		Doc:  "How often a `one_shot` is tried, on whatever nodes; then it has failed for good. What is not its own fault (a lost node, a registry or runtime that does not answer, a full disk) does not count. 0 means the default (Treeline's own).",
		Rule: "only with `one_shot`",
	},
	{
		Pointer: servicePath + "/privileged", Type: BooleanField, Status: Enforced, Default: "false",
		Doc: "It runs without the default confinement, on nodes whose operator allows that and nowhere else.",
	},
	{
		Pointer: servicePath + "/arch", Type: ArrayField, Status: Enforced, Max: 16, Default: "that of `platform`, else any",
		Doc: "The processors that it can run on.",
	},
	{Pointer: servicePath + "/arch/*", Type: StringField, Status: Enforced, Enum: Arches, Doc: "A processor, as Go names it."},
	{
		Pointer: servicePath + "/platform", Type: StringField, Status: Enforced, Pattern: platformPattern, Default: "the node's own",
		Doc: "The image's platform, `linux/amd64`. It runs on nodes of that processor only.", Rule: "`arch`, if given, names the same processor alone",
	},
}

// fieldsAfterConstraints follow the fields of constraints in the reference.
var fieldsAfterConstraints = []Field{
	{
		Pointer: servicePath + "/replicas", Type: IntegerField, Status: Enforced, Max: MaxReplicas, Default: "what is wanted already, 1 at first",
		Doc: "The instances wanted (Treeline's own).",
	},
	{
		Pointer: servicePath + "/exclusive", Type: BooleanField, Status: Enforced, Default: "false",
		Doc: "No instance ever runs twice at once, at the price that a cut-off node stops it (Treeline's own).", Rule: "not with `on_disconnect: keep`",
	},
	{
		Pointer: servicePath + "/on_disconnect", Type: StringField, Status: Enforced, Enum: []string{"", string(KeepRunning), string(StopWhenCutOff)},
		Default: "`keep`, or `stop` if exclusive", Doc: "What a node does with it when it has lost its cluster (Treeline's own).",
	},
	{
		Pointer: servicePath + "/stop_grace", Type: IntegerField, Status: Enforced, Unit: "s", Max: 3600, Default: "10",
		Doc: "Between SIGTERM and SIGKILL; 0 means the default (Treeline's own).",
	},

	{
		Pointer: servicePath + "/network", Type: StringField, Status: Enforced, Enum: []string{"", NetworkOverlay, NetworkAny}, Default: "`overlay`; of a process `any`",
		Doc:  "`overlay`: it runs only on nodes with an overlay network, where it has an address of its own and calls other services by name. `any`: it runs on other nodes, too, whose operators give it their machine's network or none; services' names are not known there (Treeline's own).",
		Rule: "`overlay` not with `virtualization: process`; `any` not with `port`, `bandwidth_in`, `bandwidth_out`, `addresses`, `callers` or `calls`",
	},
	{
		Pointer: servicePath + "/port", Type: StringField, Status: Enforced, Length: 4096,
		Doc:  "Ports published on the node: `6080:80/tcp;5353:53/udp`, the node's before the instance's; `80` alone is `80:80/tcp`. It runs only where they are free.",
		Rule: "1 to 65535, `tcp`, `udp` or `sctp`, none twice; not with `virtualization: process`",
	},
	{
		Pointer: servicePath + "/bandwidth_in", Type: IntegerField, Status: Enforced, Unit: "kbit/s", Max: 1000 * maxMbit, Default: "0", Text: bandwidthText, TextDoc: bandwidthDoc, Fix: bandwidthFix,
		Doc: "Reserved for each instance on its node's network, and the most that reaches it: more is shaped. Rounded up to whole Mbit/s. 0 bounds nothing.", Rule: "not with `virtualization: process`",
	},
	{
		Pointer: servicePath + "/bandwidth_out", Type: IntegerField, Status: Enforced, Unit: "kbit/s", Max: 1000 * maxMbit, Default: "0", Text: bandwidthText, TextDoc: bandwidthDoc, Fix: bandwidthFix,
		Doc: "The same for what each instance sends.", Rule: "not with `virtualization: process`",
	},
	{
		Pointer: addressesPath, Type: ObjectField, Status: Enforced,
		Doc: "Its semantic addresses, which stay while instances come and go. One that is not chosen is given by the system.", Rule: "not with `virtualization: process`",
	},
	{
		Pointer: addressesPath + "/rr_ip", Type: StringField, Status: Enforced, Pattern: addressPattern, Default: "`auto`",
		Doc: "New connections to this address go to the instances in turn. `auto`, or an address of the services' range that nobody has.",
	},
	{
		Pointer: addressesPath + "/closest_ip", Type: StringField, Status: Enforced, Pattern: addressPattern, Default: "no such address",
		Doc: "New connections to this address go to the instance with the least latency from the caller's node. `auto`, or an address that nobody has.",
	},
	{
		Pointer: addressesPath + "/rr_ip_v6", Type: StringField, Status: Enforced, Length: 45, Default: "`auto`",
		Doc:  "The IPv6 address of `rr_ip`: the /64 `services_6` of the root, then the IPv4 address in the last 32 bits. `auto`, or an IPv6 address, which also chooses `rr_ip` where that is not chosen. Any other prefix is refused.",
		Rule: "the last 32 bits are `rr_ip`, unless that is `auto` or absent",
	},
	{Pointer: addressesPath + "/closest_ip_v6", Type: StringField, Status: Refused, Until: "the IPv6 address follows from the IPv4 address", Doc: "Chosen IPv6 address."},
	{
		Pointer: addressesPath + "/instances", Type: ArrayField, Status: Enforced, Max: 64,
		Doc: "Instances with an address each, which stays with the number wherever the instance moves.", Rule: "ranges that do not overlap, of at most 1024 instances in all",
	},
	{Pointer: addressesPath + "/instances/*", Type: ObjectField, Status: Enforced, Doc: "A range of instance numbers."},
	{Pointer: addressesPath + "/instances/*/from", Type: IntegerField, Status: Enforced, Required: true, Max: MaxReplicas - 1, Text: digitsText, TextDoc: "the digits as a string", Doc: "The first number."},
	{Pointer: addressesPath + "/instances/*/to", Type: IntegerField, Status: Enforced, Required: true, Max: MaxReplicas - 1, Text: digitsText, TextDoc: "the digits as a string", Doc: "The last number.", Rule: "not below `from`"},
	{
		Pointer: addressesPath + "/instances/*/start", Type: StringField, Status: Enforced, Pattern: addressPattern, Default: "`auto`",
		Doc: "The first one's address; the others follow it. `auto`, or addresses that nobody has.",
	},
	{
		Pointer: servicePath + "/callers", Type: ArrayField, Status: Enforced, Max: 256, Default: "every service of the tenant",
		Doc: "Who may call it over the network: `app` (services of its application), `tenant`, `none`, an application `<app>.<ns>` or a service `<app>.<ns>.<service>.<ns>`; one of another tenant with that tenant before it, `acme/shop.prod`, if it lists this one in `calls` (Treeline's own).", Rule: "`none` stands alone",
	},
	{Pointer: servicePath + "/callers/*", Type: StringField, Status: Enforced, Length: 512, Pattern: callerPattern, Doc: "One entry."},
	{
		Pointer: servicePath + "/calls", Type: ArrayField, Status: Enforced, Max: 256,
		Doc: "Applications and services of other tenants that it calls, `acme/shop.prod`; they must list it in `callers` (Treeline's own).",
	},
	{Pointer: servicePath + "/calls/*", Type: StringField, Status: Enforced, Length: 512, Pattern: calleePattern, Doc: "One entry."},

	{
		Pointer: servicePath + "/storage", Type: IntegerField, Status: Enforced, Unit: "MiB", Max: 1 << 30, Default: "0",
		Doc: "Reserved on the node's disk; nothing bounds what is written. 0 reserves nothing.",
	},
	{
		Pointer: servicePath + "/vgpus", Type: IntegerField, Status: Enforced, Max: MaxDevices, Default: "0",
		Doc: "Whole GPUs that each instance has to itself.", Rule: devicesRuleText,
	},
	{
		Pointer: servicePath + "/vtpus", Type: IntegerField, Status: Enforced, Max: MaxDevices, Default: "0",
		Doc: "Whole TPUs that each instance has to itself.", Rule: devicesRuleText,
	},
	{
		Pointer: servicePath + "/devices", Type: ArrayField, Status: Enforced, Max: 16,
		Doc: "Devices of other kinds that each instance has to itself (Treeline's own).", Rule: "none twice; " + devicesRuleText,
	},
	{Pointer: servicePath + "/devices/*", Type: ObjectField, Status: Enforced, Doc: "Devices of one kind."},
	{
		Pointer: servicePath + "/devices/*/name", Type: StringField, Status: Enforced, Required: true, Pattern: devicePattern,
		Doc: "The kind, as nodes offer it: a CDI kind, `vendor.com/class`, or the name that an operator gave it.", Rule: "`gpu` and `tpu` are asked for as `vgpus` and `vtpus`",
	},
	{Pointer: servicePath + "/devices/*/count", Type: IntegerField, Status: Enforced, Required: true, Min: 1, Max: MaxDevices, Doc: "How many of them."},
	{
		Pointer: servicePath + "/priority", Type: StringField, Status: Enforced, Enum: append([]string{""}, Priorities...), Default: "`normal`",
		Doc: "A more urgent instance is placed before others that wait and, where the operator allows it, instead of a less urgent one, which moves (Treeline's own).",
	},
	{
		Pointer: servicePath + "/connectivity", Type: ArrayField, Status: Enforced, Max: 64,
		Doc: "What it needs of its ways to other services of the application. A link binds both ends, and binds nothing until the other end is placed.", Rule: "no target twice",
	},
	{Pointer: linkPath, Type: ObjectField, Status: Enforced, Doc: "Its way to one service."},
	{
		Pointer: linkPath + "/target_microservice_id", Type: StringField, Status: Enforced, Required: true, Pattern: siblingPattern,
		Doc: "The other service: `name.namespace`, or the name alone where it is unique.", Rule: "another service of the application",
	},
	{Pointer: linkPath + "/con_constraints", Type: ArrayField, Status: Enforced, Required: true, Max: 3, Doc: "What it needs of that way.", Rule: "no type twice"},
	{Pointer: boundPath, Type: ObjectField, Status: Enforced, Doc: "One need."},
	{
		Pointer: boundPath + "/type", Type: StringField, Status: Enforced, Required: true, Enum: []string{LinkLatency, LinkBandwidth, LinkGeo},
		Doc:  "`latency`: the longest round trip to the nearest instance, ms. `geo`: the greatest distance to it, km. `bandwidth`: kbit/s, or with its unit `10Mbit`, reserved at its own end, each way, beside `bandwidth_in` and `bandwidth_out`.",
		Rule: "`bandwidth` not with `virtualization: process`",
	},
	{
		Pointer: boundPath + "/threshold", Type: NumberField, Status: Enforced, Required: true, Unit: "ms, km or kbit/s", Max: 1000 * maxMbit, Text: bandwidthText, TextDoc: "for `bandwidth` " + bandwidthDoc,
		Doc: "The most latency or distance, or the least bandwidth.", Rule: "above 0; at most 60000 ms or 20015 km",
	},
	{Pointer: boundPath + "/rigidness", Type: NumberField, Status: Enforced, Unit: "of checks", Max: 1, Fix: rigidnessFix, Default: "`tolerate`", Doc: rigidnessDoc},
	{Pointer: boundPath + "/tolerate", Type: StringField, Status: Enforced, Pattern: tolerateText, Default: defaultRigid, Doc: tolerateDoc, Rule: "1ms to 24h; not with `rigidness`"},
	{Pointer: boundPath + "/convergence_time", Type: NumberField, Status: Enforced, Unit: "s", Max: MaxConvergence, Default: defaultConverg, Doc: convergenceDoc},

	{Pointer: servicePath + "/sla_violation_strategy", Type: StringField, Status: Refused, Until: "use `rigidness` of a constraint: a violated instance moves", Doc: "What follows when the SLA is broken."},
	{Pointer: servicePath + "/volumes", Type: ArrayField, Status: Refused, Until: untilVolumes, Doc: "Volumes and where they are mounted."},
	{Pointer: servicePath + "/added_files", Type: ArrayField, Status: Refused, Until: untilVolumes, Doc: "Files put beside the image."},
	{Pointer: servicePath + "/args", Type: ArrayField, Status: Refused, Until: "use `cmd`", Doc: "Arguments."},
	{Pointer: servicePath + "/state", Type: StringField, Status: Refused, Until: "a service keeps its own state", Doc: "Unused in Oakestra."},
	{Pointer: servicePath + "/target_node", Type: StringField, Status: Refused, Until: "use a constraint of type `direct`", Doc: "A node's name."},
}
