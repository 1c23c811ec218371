package api

import (
	"fmt"
	"slices"
	"strings"
)

// FieldStatus is how Treeline treats a field of the SLA.
type FieldStatus string

// The statuses of a field. No field is accepted and ignored.
const (
	Enforced      FieldStatus = "enforced"      // the default in tables of fields
	Informational FieldStatus = "informational" // stored or checked, without effect
	Refused       FieldStatus = "refused"       // a value other than a neutral one is a fault; see Field.Until
)

type FieldType string

const (
	ObjectField  FieldType = "object"
	ArrayField   FieldType = "array"
	StringField  FieldType = "string"
	IntegerField FieldType = "integer"
	NumberField  FieldType = "number"
	BooleanField FieldType = "boolean"
)

// Field describes one field of the SLA. The parser, the JSON schema and the reference in docs use
// it.
type Field struct {
	Pointer  string // JSON pointer; "*" stands for any index of an array
	Type     FieldType
	Status   FieldStatus
	Required bool
	Until    string // Refused: when it will be supported, or the alternative
	Doc      string // its meaning, in one or two sentences
	Unit     string // "MiB", "vCPU", "s"; empty: none
	Default  string // the effective value if it is absent; empty: none

	Min, Max int      // of a number, or of an array's length; Max 0: no limit
	Length   int      // maximum bytes of a string; 0: see Pattern
	Pattern  string   // regular expression that a string must match
	Enum     []string // allowed strings; empty: any
	Aliases  []string // former strings, also accepted
	Rule     string   // additional checks, in words
	Text     string   // of a number: the pattern of strings that are accepted instead; empty: none
	TextDoc  string   // the strings of Text, in words
	Fix      string   // how to correct an invalid value; empty: see the limits
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

// The limits of a document. Fields has the others.
const (
	MaxSLABytes  = 1 << 20 // of a document; checked before parsing
	MaxSLADepth  = 32      // nesting of objects and arrays
	MaxSLAValues = 100_000 // objects, arrays and scalars
	MaxServices  = 256     // of an application
	MaxReplicas  = 10_000  // of a service
	MaxAttempts  = 1000    // of a one-shot
	MaxLabels    = 64      // of an application or service
	MaxDevices   = 64      // of an instance, of all kinds
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
	dnsLabel        = `[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?`
	volumePattern   = `^(?:` + dnsLabel + `)?$`
	devicePattern   = `^[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?(?:/[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?)?$`
	addonPattern    = `^[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$`
	areaPattern     = `^(?:[A-Za-z0-9](?:[A-Za-z0-9 ._/-]{0,61}[A-Za-z0-9])?)?$`
	labelKey        = `[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?`
	labelKeyPattern = `^` + labelKey + `$`
	labelValue      = `[A-Za-z0-9 ._/:@+,-]{0,128}`
	labelPattern    = `^(?:!` + labelKey + `|` + labelKey + `(?:!?=` + labelValue + `)?)$`
	modePattern     = `^(?:0?[0-7]{3})?$`
	valueKeyPattern = `^[A-Za-z0-9._-]{1,128}$`
	sourcePattern   = `^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[A-Za-z0-9._-]{1,128})?$`
	byPattern       = `^(?:` + labelKey + `)?$`
	siblingName     = namePart + `(?:\.` + namePart + `)?`
	siblingPattern  = `^` + siblingName + `$`
	maybePattern    = `^(?:` + siblingName + `)?$`

	appPath        = "/applications/*"
	servicePath    = appPath + "/microservices/*"
	constraintPath = servicePath + "/constraints/*"
	addressesPath  = servicePath + "/addresses"
	updatePath     = servicePath + "/update"
	disruptionPath = servicePath + "/disruption"
	linkPath       = servicePath + "/connectivity/*"
	boundPath      = linkPath + "/con_constraints/*"
	volumePath     = servicePath + "/volumes/*"

	labelValuePattern = `^` + labelValue + `$`
	labelsDoc         = "each key 1 to 128 letters, digits and inner `.`, `_`, `/`, `-`"

	rigidnessDoc   = "The share of the checks of the last five minutes in which it must be met; otherwise the instance moves to a place that meets it, starting there before it stops here. 1: it moves at the first violation; 0.9: after 30 s. 0 means the default."
	tolerateDoc    = "How long it may be violated before the instance moves, instead of `rigidness`: `60s` (Treeline's own)."
	rigidnessFix   = "a share in (0, 1], as in Oakestra; for a time write tolerate: 60s"
	bandwidthDoc   = "a string with its unit: `10Mbit`, `500kbit`, `1Gbit`"
	bandwidthFix   = "a whole number of kbit/s, as in Oakestra, or a string with its unit: 10Mbit"
	convergenceDoc = "How long placement may search and measure before it uses the best result so far; 0 means the default."
	defaultRigid   = "`60s`"
	defaultConverg = "5"
)

// Arches are the values of `arch`, which are GOARCH names.
var Arches = []string{"amd64", "arm64", "arm", "386", "riscv64", "ppc64le", "s390x", "loong64", "mips64le"}

// Fields lists every field of the Oakestra SLA v2.0 and those that Treeline adds. It is only read.
var Fields = slices.Concat(fieldsBeforeConstraints, constraintFields, fieldsAfterConstraints,
	fileFields("files", "Files that each instance has besides those of its image (Treeline's own). It runs only on nodes that can provide them."),
	fileFields("added_files", "The same as `files`."), healthFields(), scaleFields, jobFields())

// fileFields returns the fields of a list of files.
func fileFields(name, doc string) []Field {
	list := servicePath + "/" + name
	return []Field{
		{
			Pointer: list, Type: ArrayField, Max: MaxFiles, Doc: doc,
			Rule: "not with `virtualization: process`, `microvm` or `unikernel`; no path twice or below another; at most 128 KiB of `content` in all",
		},
		{Pointer: list + "/*", Type: ObjectField, Doc: "One file.", Rule: "one of `content`, `config` and `secret`"},
		{
			Pointer: list + "/*/path", Type: StringField, Required: true, Length: 512,
			Doc:  "Where the instance finds it. An existing file of the image is replaced.",
			Rule: "absolute, without `.` and `..`; not in `/proc`, `/sys`, `/dev` or `/run/treeline`; below `/run` in a directory",
		},
		{
			Pointer: list + "/*/mode", Type: StringField, Pattern: modePattern, Default: "`0400` of a secret, else `0444`",
			Doc: "Its permissions in octal digits. It belongs to the user that the instance runs as, and cannot be written.",
		},
		{Pointer: list + "/*/content", Type: StringField, Length: MaxFileBytes, Doc: "Its text."},
		{
			Pointer: list + "/*/config", Type: StringField, Pattern: sourcePattern,
			Doc: "Its text is a value of a config of the tenant: `NAME.KEY`, or `NAME` of a config with one key.",
		},
		{
			Pointer: list + "/*/secret", Type: StringField, Pattern: sourcePattern,
			Doc: "Its text is a value of a secret of the tenant: `NAME.KEY`, or `NAME` of a secret with one key.",
		},
		{
			Pointer: list + "/*/template", Type: BooleanField, Default: "false",
			Doc: "Replaces " + variablesDoc() + ". Nothing else is interpreted.",
		},
		{
			Pointer: list + "/*/on_change", Type: StringField, Enum: onChanges(), Default: "`none`",
			Doc:  "What happens when the config or secret changes, besides that the file is rewritten: nothing, a signal to the instance's first process, or a restart of the service's instances one at a time.",
			Rule: "only with `config` or `secret`",
		},
	}
}

func variablesDoc() string {
	var names []string
	for i, v := range TemplateVariables("") {
		if i%2 == 0 {
			names = append(names, "`"+v+"`")
		}
	}
	return strings.Join(names, ", ")
}

var fieldsBeforeConstraints = []Field{
	{Pointer: "", Type: ObjectField, Required: true, Doc: "The document, JSON or YAML, at most 1 MiB."},
	{
		Pointer: "/sla_version", Type: StringField, Required: true, Enum: []string{"v2.0"},
		Doc: "The version of this format.",
	},
	{
		Pointer: "/customerID", Type: StringField, Status: Informational, Length: 256,
		Doc: "Ignored: the tenant of the signed-in user owns the application.",
	},
	{
		Pointer: "/args", Type: ArrayField, Status: Refused, Until: "use `cmd` of each microservice",
		Doc: "Arguments for all services.",
	},
	{
		Pointer: "/applications", Type: ArrayField, Required: true, Min: 1, Max: 64,
		Doc: "The applications that should exist.", Rule: "unique names and namespaces",
	},
	{Pointer: appPath, Type: ObjectField, Doc: "A set of services that belong together."},
	{
		Pointer: appPath + "/applicationID", Type: StringField, Status: Informational, Length: 256,
		Doc: "Assigned by the system. Applications are identified by name and namespace.",
	},
	{
		Pointer: appPath + "/application_name", Type: StringField, Required: true, Pattern: namePattern,
		Doc: "The application's name, unique with its namespace within the tenant.", Rule: "not `of-tenant`",
	},
	{
		Pointer: appPath + "/application_namespace", Type: StringField, Required: true, Pattern: namePattern,
		Doc: "Distinguishes applications of the same name: `prod`, `test`.", Rule: "not `of-tenant`",
	},
	{
		Pointer: appPath + "/application_desc", Type: StringField, Status: Informational, Length: 4096,
		Doc: "A description for people.",
	},
	{
		Pointer: appPath + "/labels", Type: ObjectField, Max: MaxLabels,
		Doc:  "Labels that commands select by (`treeline get apps -l team=web`). The application's services have them, too. They have no effect on placement, and a change starts no roll-out (Treeline's own).",
		Rule: labelsDoc,
	},
	{Pointer: appPath + "/labels/*", Type: StringField, Pattern: labelValuePattern, Doc: "The value of the label that the key names."},
	{
		Pointer: appPath + "/microservices", Type: ArrayField, Required: true, Max: MaxServices,
		Doc: "The application's services. A service that a later SLA leaves out is deleted.", Rule: "unique names and namespaces",
	},
	{Pointer: servicePath, Type: ObjectField, Doc: "One service: what runs, and where it may run."},
	{
		Pointer: servicePath + "/microserviceID", Type: StringField, Status: Informational, Pattern: `^$`,
		Doc: "Assigned by the system; must be empty.",
	},
	{
		Pointer: servicePath + "/microservice_name", Type: StringField, Required: true, Pattern: namePattern,
		Doc: "The service's name, unique with its namespace within the application.", Rule: "not `of-tenant`",
	},
	{
		Pointer: servicePath + "/microservice_namespace", Type: StringField, Required: true, Pattern: namePattern,
		Doc: "Distinguishes services of the same name.", Rule: "not `of-tenant`",
	},
	{
		Pointer: servicePath + "/labels", Type: ObjectField, Max: MaxLabels,
		Doc:  "Labels of the service, in addition to those of its application, whose values they replace. For labels of nodes, see `constraints` (Treeline's own).",
		Rule: labelsDoc,
	},
	{Pointer: servicePath + "/labels/*", Type: StringField, Pattern: labelValuePattern, Doc: "The value of the label that the key names."},
	{
		Pointer: servicePath + "/virtualization", Type: StringField, Required: true, Pattern: runtimePattern,
		Doc:  "What runs it: `container` (also written `docker`), `process`, `microvm` or `unikernel` (virtual machines), or the name of a runtime that some node offers, such as `runsc`. It runs on such nodes only.",
		Rule: "not `crosvm`; `microvm` and `unikernel` not with `privileged`, devices, `volumes`, `storage`, `files` or a health check by `command`",
	},
	{
		Pointer: servicePath + "/code", Type: StringField, Required: true, Length: 1024,
		Doc:  "The image, as `docker pull` takes it, without a scheme. For `process`: the absolute path of the program; `file:///path` means the same. For `unikernel` also the URL of a `.tar.gz` with the file `kernel`, or one for each entry of `arch`, separated by commas.",
		Rule: "an image reference; for `process` an absolute path, for `unikernel` also URLs; no white space and no `..`",
	},
	{
		Pointer: servicePath + "/memory", Type: IntegerField, Unit: "MiB", Max: 16 << 20, Default: "the cluster's",
		Doc:  "Reserved on the node and the limit in its cgroup. 0 or absent: what the operator of the cluster configures; by default 16 MiB are reserved and the limit is 512 MiB. The memory of `files` is reserved in addition. A cluster refuses more than its operator's `workload.max_memory`.",
		Rule: "128 MiB or more for `microvm` and `unikernel`",
	},
	{
		Pointer: servicePath + "/vcpus", Type: NumberField, Unit: "vCPU", Max: 4096, Default: "the cluster's",
		Doc: "Reserved on the node and the limit in its cgroup; fractions are allowed. 0 or absent: what the operator of the cluster configures; by default 0.01 are reserved and the limit is 1. A cluster refuses more than its operator's `workload.max_vcpus`.", Rule: "at most 3 decimals",
	},
	{Pointer: servicePath + "/vcpu", Type: NumberField, Unit: "vCPU", Max: 4096, Doc: "The name of `vcpus` in an example of Oakestra's documentation.", Rule: "not with `vcpus`; at most 3 decimals"},
	{
		Pointer: servicePath + "/cmd", Type: ArrayField, Max: 256, Default: "the image's own",
		Doc: "The program and its arguments.",
	},
	{Pointer: servicePath + "/cmd/*", Type: StringField, Length: 16 << 10, Doc: "One argument."},
	{
		Pointer: servicePath + "/environment", Type: ArrayField, Max: 256,
		Doc: "Environment variables, in addition to those of the image.", Rule: "no key twice; not with `virtualization: unikernel`",
	},
	{
		Pointer: servicePath + "/environment/*", Type: StringField, Length: 16 << 10, Pattern: envPattern,
		Doc: "`KEY=value`.",
	},
	{
		Pointer: servicePath + "/one_shot", Type: BooleanField, Default: "false",
		Doc: "It has completed when it exits with 0, and is not restarted then. If it fails it is started again, at most `max_attempts` times in all.",
	},
	{
		Pointer: servicePath + "/max_attempts", Type: IntegerField, Max: MaxAttempts, Default: itoa(DefaultAttempts),
		Doc:  "The maximum number of attempts of a `one_shot`, on all nodes together; then it has failed for good. Failures of the environment (a lost node, a registry or runtime that does not answer, a full disk) do not count. 0 means the default (Treeline's own).",
		Rule: "only with `one_shot`",
	},
	{
		Pointer: servicePath + "/stdin", Type: BooleanField, Default: "false",
		Doc:  "Its first process has an input, which `treeline attach -i` writes and ends. Without it, the input is empty (Treeline's own).",
		Rule: "only of containers",
	},
	{
		Pointer: servicePath + "/tty", Type: BooleanField, Default: "false",
		Doc:  "Its first process runs in a terminal, whose size and keys are those of `treeline attach -it` (Treeline's own).",
		Rule: "only of containers",
	},
	{
		Pointer: servicePath + "/privileged", Type: BooleanField, Default: "false",
		Doc: "It runs without the default confinement, only on nodes whose operator allows this.",
	},
	{
		Pointer: servicePath + "/arch", Type: ArrayField, Max: 16, Default: "that of `platform`, else any",
		Doc: "The processors that it may run on.",
	},
	{Pointer: servicePath + "/arch/*", Type: StringField, Enum: Arches, Doc: "A processor, as Go names it."},
	{
		Pointer: servicePath + "/platform", Type: StringField, Pattern: platformPattern, Default: "the node's own",
		Doc: "The image's platform, `linux/amd64`. It runs on nodes of that processor only.", Rule: "`arch`, if given, is this processor only",
	},
}

// fieldsAfterConstraints come after the fields of constraints in the reference.
var fieldsAfterConstraints = []Field{
	{
		Pointer: servicePath + "/replicas", Type: IntegerField, Max: MaxReplicas, Default: "the present number; 1 for a new service",
		Doc: "The number of instances (Treeline's own).", Rule: "not with `scale`",
	},
	{
		Pointer: servicePath + "/exclusive", Type: BooleanField, Default: "false",
		Doc: "No instance ever runs twice at the same time. The price: a node that loses its cluster stops it (Treeline's own).", Rule: "not with `on_disconnect: keep`",
	},
	{
		Pointer: servicePath + "/on_disconnect", Type: StringField, Enum: []string{"", string(KeepRunning), string(StopWhenCutOff)},
		Default: "`keep`, or `stop` if exclusive", Doc: "What a node does with it when it loses its cluster (Treeline's own).",
	},
	{
		Pointer: servicePath + "/stop_grace", Type: IntegerField, Unit: "s", Max: 3600, Default: "10",
		Doc: "The time between SIGTERM and SIGKILL; 0 means the default (Treeline's own).",
	},
	{
		Pointer: updatePath, Type: ObjectField, Default: "no instance is missing during a roll-out",
		Doc: "How a new version of the service replaces the one before (Treeline's own). A change of `update` alone replaces nothing.",
	},
	{
		Pointer: updatePath + "/parallelism", Type: IntegerField, Max: MaxReplicas, Default: "a quarter of the replicas, at least 1",
		Doc: "How many instances are replaced at once; 0 means the default.", Rule: "not with `one_shot`",
	},
	{
		Pointer: updatePath + "/surge", Type: IntegerField, Max: MaxReplicas, Default: "`parallelism`; 0 if exclusive or with local volumes",
		Doc:  "How many instances run in addition to the replicas during a roll-out, at most as many as these. They start first, and an instance is replaced only while as many as wanted are ready without it. 0: an instance stops before its replacement starts; its image is pulled first.",
		Rule: "0 with `exclusive` and local volumes; not with `one_shot`",
	},
	{
		Pointer: updatePath + "/min_healthy_time", Type: IntegerField, Unit: "s", Max: 3600, Default: itoa(DefaultMinHealthyTime) + " for the first instance of a version, then " + itoa(defaultNextHealthy),
		Doc: "How long an instance of the new version must be ready without interruption to count as healthy.", Rule: "below `deadline`; not with `one_shot`",
	},
	{
		Pointer: updatePath + "/deadline", Type: IntegerField, Unit: "s", Max: 86_400, Default: itoa(DefaultUpdateDeadline),
		Doc: "The longest time in which no further instance becomes healthy. Then the roll-out has failed. 0 means the default.", Rule: "not with `one_shot`",
	},
	{
		Pointer: updatePath + "/canaries", Type: IntegerField, Max: MaxReplicas, Default: "0",
		Doc: "How many instances get the new version first. The others follow after `treeline rollout promote`.", Rule: "not with `one_shot`",
	},
	{
		Pointer: updatePath + "/auto_rollback", Type: BooleanField, Default: "true",
		Doc: "A roll-out that fails returns the service to its last healthy version. Otherwise it stops as it is.", Rule: "not with `one_shot`",
	},
	{
		Pointer: disruptionPath, Type: ObjectField, Default: "moves are not limited",
		Doc: "The disruption budget of the service: what drains of nodes, requested moves and moves because of its SLA may interrupt (Treeline's own). A change of `disruption` alone replaces nothing.", Rule: "not with `one_shot`",
	},
	{
		Pointer: disruptionPath + "/max_unavailable", Type: IntegerField, Max: MaxReplicas, Default: "1",
		Doc: "How many instances, in all clusters together, may be unavailable for any reason at the time when a move interrupts one. A move interrupts instances of an `exclusive` service and those with `move: volume`; the replacement of any other one runs before it stops. 0: they are never moved, unless an operator stops them with `treeline drain --force`. Failures, roll-outs (see `update`) and preemption do not wait.",
	},

	{
		Pointer: servicePath + "/network", Type: StringField, Enum: []string{"", NetworkOverlay, NetworkAny}, Default: "`overlay`; of a process `any`",
		Doc:  "`overlay`: it runs only on nodes with an overlay network, where it has its own address and reaches other services by name. `any`: it may also run on other nodes, with the machine's network or none, as their operators configure; names of services do not resolve there (Treeline's own).",
		Rule: "`overlay` not with `virtualization: process`; `any` not with `port`, `bandwidth_in`, `bandwidth_out`, `addresses`, `callers` or `calls`",
	},
	{
		Pointer: servicePath + "/port", Type: StringField, Length: 4096,
		Doc:  "Ports published on the node: `6080:80/tcp;5353:53/udp`, the node's port first, then the instance's; `80` means `80:80/tcp`. It runs only on nodes where these ports are free.",
		Rule: "1 to 65535, `tcp`, `udp` or `sctp`, none twice; not with `virtualization: process`",
	},
	{
		Pointer: servicePath + "/bandwidth_in", Type: IntegerField, Unit: "kbit/s", Max: 1000 * maxMbit, Default: "0", Text: bandwidthText, TextDoc: bandwidthDoc, Fix: bandwidthFix,
		Doc: "Reserved for each instance on its node's network, and the limit of what it receives: more is shaped. Rounded up to whole Mbit/s. 0: no limit.", Rule: "not with `virtualization: process`",
	},
	{
		Pointer: servicePath + "/bandwidth_out", Type: IntegerField, Unit: "kbit/s", Max: 1000 * maxMbit, Default: "0", Text: bandwidthText, TextDoc: bandwidthDoc, Fix: bandwidthFix,
		Doc: "The same for the traffic that each instance sends.", Rule: "not with `virtualization: process`",
	},
	{
		Pointer: addressesPath, Type: ObjectField,
		Doc: "Its semantic addresses, which do not change when instances do. The system assigns those that are not given.", Rule: "not with `virtualization: process`",
	},
	{
		Pointer: addressesPath + "/rr_ip", Type: StringField, Pattern: addressPattern, Default: "`auto`",
		Doc: "New connections to this address go to the instances in turn. `auto`, or a free address of the range for services.",
	},
	{
		Pointer: addressesPath + "/closest_ip", Type: StringField, Pattern: addressPattern, Default: "no such address",
		Doc: "New connections to this address go to the instance with the lowest latency from the caller's node. `auto`, or a free address.",
	},
	{
		Pointer: addressesPath + "/rr_ip_v6", Type: StringField, Length: 45, Default: "`auto`",
		Doc:  "The IPv6 address of `rr_ip`: the /64 `services_6` of the root, then the IPv4 address in the last 32 bits. `auto`, or an IPv6 address, which also chooses `rr_ip` where that is not chosen. Any other prefix is refused.",
		Rule: "the last 32 bits are `rr_ip`, unless that is `auto` or absent",
	},
	{Pointer: addressesPath + "/closest_ip_v6", Type: StringField, Status: Refused, Until: "the IPv6 address follows from the IPv4 address", Doc: "Chosen IPv6 address."},
	{
		Pointer: addressesPath + "/instances", Type: ArrayField, Max: 64,
		Doc: "Ranges of instances that each have an address. It belongs to the instance's number and does not change when the instance moves.", Rule: "ranges that do not overlap, of at most 1024 instances in all",
	},
	{Pointer: addressesPath + "/instances/*", Type: ObjectField, Doc: "A range of instance numbers."},
	{Pointer: addressesPath + "/instances/*/from", Type: IntegerField, Required: true, Max: MaxReplicas - 1, Text: digitsText, TextDoc: "the digits as a string", Doc: "The first number."},
	{Pointer: addressesPath + "/instances/*/to", Type: IntegerField, Required: true, Max: MaxReplicas - 1, Text: digitsText, TextDoc: "the digits as a string", Doc: "The last number.", Rule: "not below `from`"},
	{
		Pointer: addressesPath + "/instances/*/start", Type: StringField, Pattern: addressPattern, Default: "`auto`",
		Doc: "The first instance's address; the others follow consecutively. `auto`, or a free address.",
	},
	{
		Pointer: servicePath + "/callers", Type: ArrayField, Max: 256, Default: "every service of the tenant",
		Doc: "Who may call it over the network: `app` (services of its application), `tenant`, `none`, an application `<app>.<ns>` or a service `<app>.<ns>.<service>.<ns>`; those of another tenant with the tenant before the name, `acme/shop.prod`; they must list this service in `calls` (Treeline's own).", Rule: "`none` must be the only entry",
	},
	{Pointer: servicePath + "/callers/*", Type: StringField, Length: 512, Pattern: callerPattern, Doc: "One entry."},
	{
		Pointer: servicePath + "/calls", Type: ArrayField, Max: 256,
		Doc: "Applications and services of other tenants that it calls, `acme/shop.prod`; they must list it in `callers` (Treeline's own).",
	},
	{Pointer: servicePath + "/calls/*", Type: StringField, Length: 512, Pattern: calleePattern, Doc: "One entry."},

	{
		Pointer: servicePath + "/storage", Type: IntegerField, Unit: "MiB", Max: 1 << 30, Default: "0",
		Doc:  "Reserved on the node's disk, and the limit of what each container writes outside its volumes: writing more fails with \"no space left on device\". Less than 16 counts as 16. It runs only on nodes that enforce this. 0: no limit, and nothing is reserved.",
		Rule: "not with `virtualization: process`",
	},
	{
		Pointer: servicePath + "/vgpus", Type: IntegerField, Max: MaxDevices, Default: "0",
		Doc: "Whole GPUs that each instance gets exclusively.", Rule: devicesRuleText,
	},
	{
		Pointer: servicePath + "/vtpus", Type: IntegerField, Max: MaxDevices, Default: "0",
		Doc: "Whole TPUs that each instance gets exclusively.", Rule: devicesRuleText,
	},
	{
		Pointer: servicePath + "/devices", Type: ArrayField, Max: 16,
		Doc: "Devices of other kinds that each instance gets exclusively (Treeline's own).", Rule: "none twice; " + devicesRuleText,
	},
	{Pointer: servicePath + "/devices/*", Type: ObjectField, Doc: "Devices of one kind."},
	{
		Pointer: servicePath + "/devices/*/name", Type: StringField, Required: true, Pattern: devicePattern,
		Doc: "The kind, as nodes offer it: a CDI kind, `vendor.com/class`, or a name that an operator assigned.", Rule: "for `gpu` and `tpu` use `vgpus` and `vtpus`",
	},
	{Pointer: servicePath + "/devices/*/count", Type: IntegerField, Required: true, Min: 1, Max: MaxDevices, Doc: "How many of them."},
	{
		Pointer: servicePath + "/priority", Type: StringField, Enum: append([]string{""}, Priorities...), Default: "`normal`",
		Doc: "More urgent instances are placed first. If the operator allows it they evict less urgent ones, which move (Treeline's own).",
	},
	{
		Pointer: servicePath + "/connectivity", Type: ArrayField, Max: 64,
		Doc: "Requirements on the network paths to other services of the application. A link applies to both ends, once both are placed.", Rule: "no target twice",
	},
	{Pointer: linkPath, Type: ObjectField, Doc: "The path to one service."},
	{
		Pointer: linkPath + "/target_microservice_id", Type: StringField, Required: true, Pattern: siblingPattern,
		Doc: "The other service: `name.namespace`, or only the name if it is unique.", Rule: "another service of the application",
	},
	{Pointer: linkPath + "/con_constraints", Type: ArrayField, Required: true, Max: 3, Doc: "Requirements on this path.", Rule: "no type twice"},
	{Pointer: boundPath, Type: ObjectField, Doc: "One requirement."},
	{
		Pointer: boundPath + "/type", Type: StringField, Required: true, Enum: []string{LinkLatency, LinkBandwidth, LinkGeo},
		Doc:  "`latency`: the maximum round trip to the nearest instance, ms. `geo`: the maximum distance to it, km. `bandwidth`: kbit/s, or with a unit `10Mbit`, reserved at its own end in both directions, in addition to `bandwidth_in` and `bandwidth_out`.",
		Rule: "`bandwidth` not with `virtualization: process`",
	},
	{
		Pointer: boundPath + "/threshold", Type: NumberField, Required: true, Unit: "ms, km or kbit/s", Max: 1000 * maxMbit, Text: bandwidthText, TextDoc: "for `bandwidth` " + bandwidthDoc,
		Doc: "The maximum latency or distance, or the minimum bandwidth.", Rule: "above 0; at most 60000 ms or 20015 km",
	},
	{Pointer: boundPath + "/rigidness", Type: NumberField, Unit: "of checks", Max: 1, Fix: rigidnessFix, Default: "`tolerate`", Doc: rigidnessDoc},
	{Pointer: boundPath + "/tolerate", Type: StringField, Pattern: tolerateText, Default: defaultRigid, Doc: tolerateDoc, Rule: "1ms to 24h; not with `rigidness`"},
	{Pointer: boundPath + "/convergence_time", Type: NumberField, Unit: "s", Max: MaxConvergence, Default: defaultConverg, Doc: convergenceDoc},

	{Pointer: servicePath + "/sla_violation_strategy", Type: StringField, Status: Refused, Until: "use `rigidness` of a constraint: a violated instance moves", Doc: "The reaction to violations of the SLA."},
	moveField(),
	{
		Pointer: servicePath + "/volumes", Type: ArrayField, Max: MaxVolumes,
		Doc: "The volumes of each instance. Their sizes are reserved like `storage` and, for `tmpfs`, like `memory`. It runs only on nodes that support the types.", Rule: "no name twice; no path in another one; only with `virtualization: container`",
	},
	{Pointer: volumePath, Type: ObjectField, Doc: "One volume."},
	{Pointer: volumePath + "/name", Type: StringField, Pattern: volumePattern, Doc: "Its name within the service (Treeline's own).", Rule: "`name` or `volume_id` is required"},
	{Pointer: volumePath + "/volume_id", Type: StringField, Pattern: volumePattern, Doc: "Oakestra's name of `name`."},
	{
		Pointer: volumePath + "/type", Type: StringField, Enum: append([]string{""}, VolumeTypes...),
		Doc:  "`local`: on a node's disk. It outlives the instance, restarts and new SLAs, and is deleted only by `treeline delete volume`; its instance is placed only where it is, and waits for that node. `csi`: of the driver `csi_driver`. It outlives the instance, too, and follows it to another node after the earlier one has left it or its lease has ended; the service is `exclusive` then. `csi_ephemeral`: of the driver `csi_driver` on the node, which makes it when it is mounted; it is removed with the placement of the instance. `ephemeral`: on a node's disk, deleted with the placement of the instance. `tmpfs`: in memory, and counts for the instance's memory (Treeline's own).",
		Rule: "`type` or `csi_driver` is required",
	},
	{
		Pointer: volumePath + "/csi_driver", Type: StringField, Length: 63,
		Doc: "The CSI driver of a volume of type `csi`, which is implied, or `csi_ephemeral`. Its nodes and, for `csi`, its cluster have the driver in their configuration. Oakestra's documents have the other types here, too.", Rule: "a DNS name with a dot (`csi.example.org`), or a type",
	},
	{
		Pointer: volumePath + "/mount_path", Type: StringField, Required: true, Length: maxMountPath,
		Doc: "Where the container sees it.", Rule: "absolute, without `.` and `..`; not over `/proc`, `/sys`, `/dev`, `/etc/hosts` or `/etc/resolv.conf`",
	},
	{
		Pointer: volumePath + "/size", Type: IntegerField, Unit: "MiB", Min: 1, Max: MaxVolumeMB, Default: "1024 with `csi`",
		Doc: "What the volume takes of the disk or memory. Writing more fails with \"no space left on device\" in the container and nowhere else. On disk, the file system takes a few percent for itself (Treeline's own).", Rule: "required, but not with `csi`, whose driver is asked for 1024 MiB, and not allowed with `csi_ephemeral`, whose driver may have a parameter for it; at least 16 for `local` and `ephemeral`; an existing `local` volume cannot change its size, one of type `csi` can grow",
	},
	{Pointer: volumePath + "/read_only", Type: BooleanField, Default: "false", Doc: "The container cannot write to it (Treeline's own).", Rule: "not with `ephemeral` and `tmpfs`"},
	{Pointer: volumePath + "/config", Type: ObjectField, Max: 32, Doc: "Parameters that the CSI driver gets when it makes the volume. Later changes have no effect on an existing volume.", Rule: "only with `type: csi` or `csi_ephemeral`; for the latter no names with `csi.storage.k8s.io/`"},
	{Pointer: volumePath + "/config/*", Type: StringField, Length: 1024, Doc: "One parameter, under its name of 1 to 128 bytes."},
	{
		Pointer: volumePath + "/snapshot", Type: StringField, Length: 512,
		Doc: "The snapshot of a CSI volume of the same tenant that the volume is created from (`treeline get snapshots`); its instance is placed in the cluster of the snapshot. It has no effect on an existing volume (Treeline's own).", Rule: "only with `type: csi`, of the same driver; `size` at least that of the snapshot",
	},
	{Pointer: volumePath + "/secrets", Type: ArrayField, Status: Refused, Until: "the operators of cluster and nodes configure the secrets of a driver (key `csi_secrets`)", Doc: "Secrets for the CSI driver."},
	{
		Pointer: volumePath + "/access_mode", Type: StringField, Enum: []string{"", AccessOneWriter, AccessManyWriters, AccessManyReaders}, Default: "`single_node_writer`",
		Doc:  "Who may use the volume, in the terms of CSI. `single_node_writer`: each instance has one of its own (Kubernetes' ReadWriteOnce). `multi_node_multi_writer`: the instances of the service use one volume together, on all its nodes (ReadWriteMany). `multi_node_reader_only`: as before, and nobody writes to it (ReadOnlyMany); it has what the driver fills it with, or its `snapshot`. A shared volume belongs to its service, which stays within one cluster and is not `exclusive` (Treeline's own).",
		Rule: "only with `type: csi`; the driver must confirm the mode; an existing volume cannot change it",
	},
	{Pointer: servicePath + "/environment_from", Type: ArrayField, Status: Refused, Until: "use `files`: an environment is stored with the container and can be read in /proc", Doc: "Environment variables from configs and secrets."},
	{Pointer: servicePath + "/args", Type: ArrayField, Status: Refused, Until: "use `cmd`", Doc: "Arguments."},
	{Pointer: servicePath + "/state", Type: StringField, Status: Refused, Until: "services store their own state", Doc: "Unused in Oakestra."},
	{Pointer: servicePath + "/target_node", Type: StringField, Status: Refused, Until: "use a constraint of type `direct`", Doc: "A node's name."},
}
