package api

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// rules has the checks of fields that the table cannot express (Field.Rule), by pointer. A rule
// must tolerate values with other faults and must not report these.
var rules map[string]func(c checker, at string, v *value)

func init() { // in init, because rules and table refer to each other
	rules = map[string]func(checker, string, *value){
		"/applications":                uniqueRule("application_name", "application_namespace"),
		appPath + "/microservices":     uniqueRule("microservice_name", "microservice_namespace"),
		appPath:                        siblingsRule,
		appPath + "/labels":            labelsRule,
		servicePath:                    serviceRule,
		servicePath + "/labels":        labelsRule,
		servicePath + "/environment":   environmentRule,
		servicePath + "/arch":          onceRule("", "keep one of them"),
		servicePath + "/constraints":   narrowingRule,
		constraintPath:                 constraintRule,
		constraintPath + "/needs":      onceRule("", "keep one of them"),
		constraintPath + "/labels":     onceRule("", "keep one of them"),
		constraintPath + "/location":   locationRule,
		constraintPath + "/polygon":    polygonRule,
		constraintPath + "/target":     targetRule,
		servicePath + "/devices":       devicesRule,
		servicePath + "/volumes":       volumesRule,
		volumePath:                     volumeRule,
		linkPath + "/con_constraints":  onceRule("type", "leave one of them out"),
		servicePath + "/connectivity":  onceRule("target_microservice_id", "merge their con_constraints"),
		boundPath:                      linkRule,
		servicePath + "/bandwidth_in":  mbitRule,
		servicePath + "/bandwidth_out": mbitRule,
		servicePath + "/port":          portRule,
		servicePath + "/callers":       callersRule,
		servicePath + "/files/*":       fileRule,
		servicePath + "/added_files/*": fileRule,
		addressesPath + "/instances":   rangesRule,
		healthPath:                     healthRule,

		appPath + "/application_name":           nameRule,
		appPath + "/application_namespace":      nameRule,
		servicePath + "/microservice_name":      nameRule,
		servicePath + "/microservice_namespace": nameRule,

		healthPath + "/startup":   checkRule,
		healthPath + "/readiness": checkRule,
		healthPath + "/liveness":  checkRule,

		addressesPath:                        pairRule,
		addressesPath + "/rr_ip_v6":          address6Rule,
		addressesPath + "/rr_ip":             addressRule,
		addressesPath + "/closest_ip":        addressRule,
		addressesPath + "/instances/*/start": addressRule,
	}
}

// once refuses two items of a list with the same key; empty keys do not count. The fault is at the
// given member of the second item, or at the item if member is empty.
func (c checker) once(at, member, fix string, items []value, key func(*value) string) {
	seen := map[string]int{}
	for i := range items {
		k := key(&items[i])
		if first, again := seen[k]; again && k != "" {
			c.fault(strings.TrimSuffix(at+"/"+itoa(i)+"/"+member, "/"), fix, "%s is given twice, first at %s/%d", shorten(k), at, first)
			continue
		}
		seen[k] = i
	}
}

// onceRule refuses two items of a list with the same text, or with the same text of a member.
func onceRule(member, fix string) func(checker, string, *value) {
	return func(c checker, at string, v *value) {
		c.once(at, member, fix, v.items, func(v *value) string {
			if member != "" {
				v = v.get(member)
			}
			return v.text
		})
	}
}

// uniqueRule refuses two items with the same name and namespace.
func uniqueRule(name, namespace string) func(checker, string, *value) {
	return func(c checker, at string, v *value) {
		c.once(at, name, "rename one or merge them", v.items, func(v *value) string {
			return strings.Trim(v.get(name).text+"."+v.get(namespace).text, ".")
		})
	}
}

// labelsRule refuses keys that no selector could name.
func labelsRule(c checker, at string, v *value) {
	for i := range v.members {
		if key := v.members[i].key; key != "" && len(key) <= maxKey && !patterns[labelKeyPattern].MatchString(key) {
			c.fault(at+"/"+escape(key), fixPattern[labelKeyPattern], "labels cannot have the key %q", shorten(key))
		}
	}
}

func serviceRule(c checker, at string, v *value) {
	if v.get("vcpu").kind != "" && v.get("vcpus").kind != "" {
		c.fault(at+"/vcpu", "leave it out", "vcpu and vcpus are the same field")
	}
	if code := v.get("code"); code.kind == StringField {
		wrong, fix := imageFault(code.text)
		switch virt := v.get("virtualization").text; {
		case virt == Process:
			wrong, fix = fileFault(code.text)
		case virt == Unikernel && strings.Contains(code.text, "://"):
			wrong, fix = archivesFault(code.text, len(v.get("arch").items))
		}
		if wrong != "" {
			c.fault(at+"/code", fix, "code %s", wrong)
		}
	}
	if csi := ownCSIVolume(v); csi >= 0 && v.get("on_disconnect").text == string(KeepRunning) {
		c.fault(at+"/on_disconnect", "leave on_disconnect out, or volumes/"+itoa(csi),
			"a service with a CSI volume cannot keep running on a node without its cluster: the volume could be in use twice")
	} else if v.get("exclusive").truth && v.get("on_disconnect").text == string(KeepRunning) {
		c.fault(at+"/on_disconnect", "leave out exclusive or on_disconnect",
			"an exclusive service cannot keep running on a node without its cluster: it could run twice")
	}
	for _, key := range []string{"stdin", "tty"} {
		if virt := v.get("virtualization").text; v.get(key).truth && (virt == "process" || virt == "microvm" || virt == "unikernel") {
			c.fault(at+"/"+key, "use virtualization: container, or leave "+key+" out", "%s is honoured for containers only, not for %s", key, virt)
		}
	}
	if !neutral(v.get("max_attempts")) && !v.get("one_shot").truth {
		c.fault(at+"/max_attempts", "add one_shot: true, or leave max_attempts out",
			"max_attempts applies to a one_shot; other services are restarted without a limit")
	}
	platformRule(c, at, v)
	processRule(c, at, v)
	vmRule(c, at, v)
	networkRule(c, at, v)
	totalDevicesRule(c, at, v)
	filesRule(c, at, v)
	containersOnlyRule(c, at, v)
	updateRule(c, at, v)
	if v.get("one_shot").truth && !neutral(v.get("disruption")) {
		c.fault(at+"/disruption", "leave disruption out", "a one_shot has no disruption budget: its instances end, and are not expected to be available")
	}
	scaleRule(c, at, v)
	jobRule(c, at, v)
	moveRule(c, at, v)
}

var overlayFields = []string{"port", "bandwidth_in", "bandwidth_out", "addresses", "callers", "calls"}

// processRule refuses what a process cannot have. It uses its node's network and has access to all
// devices of its node.
func processRule(c checker, at string, v *value) {
	if v.get("virtualization").text != "process" {
		return
	}
	const network, devices = "uses its node's network", "has access to all of its node's devices"
	refuse := func(at, name, why string) {
		c.fault(at, "run it as a container, or leave "+name+" out", "%s is not supported for a process, which %s", name, why)
	}
	for _, name := range overlayFields {
		if !neutral(v.get(name)) {
			refuse(at+"/"+name, name, network)
		}
	}
	if v.get("network").text == NetworkOverlay {
		refuse(at+"/network", "network: overlay", network)
	}
	if !neutral(v.get("storage")) {
		refuse(at+"/storage", "storage", "writes to its node's disk")
	}
	for _, name := range []string{"vgpus", "vtpus", "devices"} {
		if !neutral(v.get(name)) {
			refuse(at+"/"+name, name, devices)
		}
	}
	for i, link := range v.get("connectivity").items {
		for k, need := range link.get("con_constraints").items {
			if need.get("type").text == LinkBandwidth {
				refuse(at+"/connectivity/"+itoa(i)+"/con_constraints/"+itoa(k)+"/type", LinkBandwidth, network)
			}
		}
	}
}

// vmRule refuses what a virtual machine cannot have. filesRule refuses files.
func vmRule(c checker, at string, v *value) {
	virt := v.get("virtualization").text
	if virt == crosvm {
		c.fault(at+"/virtualization", "microvm, whose image has a kernel and an initial file system, or a container, which may have GPUs",
			"virtualization cannot be crosvm: its machines boot from a disk with all files of the image, which virtual machines here do not have")
		return
	}
	if !isVM(virt) {
		return
	}
	for _, name := range []string{"privileged", "vgpus", "vtpus", "devices", "volumes", "storage"} {
		if !neutral(v.get(name)) {
			c.fault(at+"/"+name, "run it as a container, or leave "+name+" out", "%s is not supported for a virtual machine", name)
		}
	}
	memory := v.get("memory")
	mb, err := strconv.ParseFloat(memory.text, 64)
	if neutral(memory) || memory.kind == NumberField && err == nil && mb < MinVMMemory {
		c.fault(at+"/memory", "128 MiB or more", "a virtual machine needs memory of at least %d MiB, of which QEMU takes 56", MinVMMemory)
	}
	if virt == Unikernel && !neutral(v.get("environment")) {
		c.fault(at+"/environment", "pass it in cmd", "environment is not supported for a unikernel, which gets a command line only")
	}
	for _, kind := range []string{"startup", "readiness", "liveness"} {
		if !neutral(v.get("health").get(kind).get("command")) {
			c.fault(at+"/health/"+kind+"/command", "check by http, tcp or grpc", "a command cannot be run in a virtual machine")
		}
	}
}

// networkRule refuses features of the overlay network for a service that opts out of it.
func networkRule(c checker, at string, v *value) {
	if v.get("network").text != NetworkAny || v.get("virtualization").text == "process" {
		return
	}
	for _, name := range overlayFields {
		asks := !neutral(v.get(name))
		if name == "addresses" {
			asks = slices.ContainsFunc(v.get(name).members, func(m member) bool { return !neutral(&m.value) })
		}
		if asks {
			c.fault(at+"/network", "leave out network or "+name, "network: any cannot be combined with %s, a feature of the overlay network", name)
		}
	}
}

const devicesRuleText = "at most 64 devices of all kinds together; not with `virtualization: process`"

// totalDevicesRule limits the devices of one instance.
func totalDevicesRule(c checker, at string, v *value) {
	count := func(v *value) int {
		n, _ := strconv.Atoi(v.text) // other text already has a fault
		return max(0, min(n, MaxDevices))
	}
	sum := count(v.get("vgpus")) + count(v.get("vtpus"))
	for i := range v.get("devices").items {
		sum += count(v.get("devices").items[i].get("count"))
	}
	if sum > MaxDevices {
		c.fault(at+"/devices", "request fewer", "%d devices for each instance, want at most %d", sum, MaxDevices)
	}
}

func devicesRule(c checker, at string, v *value) {
	for i := range v.items {
		name := v.items[i].get("name").text
		if name == DeviceGPU || name == DeviceTPU {
			c.fault(at+"/"+itoa(i)+"/name", "use v"+name+"s", "%s is not a kind of device", name)
		}
	}
	onceRule("name", "merge them into one entry with the sum of the counts")(c, at, v)
}

func linkRule(c checker, at string, v *value) {
	patienceRule(c, at, v)
	threshold := v.get("threshold")
	if threshold.kind == "" {
		return // already has a fault, because it is required
	}
	if threshold.kind == StringField && v.get("type").text != LinkBandwidth {
		c.fault(at+"/threshold", "a number of ms or km", "threshold of %s cannot be %q", shorten(v.get("type").text), shorten(threshold.text))
		return
	}
	switch kind := v.get("type").text; kind {
	case LinkLatency:
		c.threshold(at, v, kind, "ms", maxRoundTrip)
	case LinkGeo:
		c.threshold(at, v, kind, "km", maxKilometres)
	case LinkBandwidth:
		mbitRule(c, at+"/threshold", threshold)
		if threshold.kind == NumberField {
			c.threshold(at, v, kind, "kbit/s", 1000*maxMbit)
		} else if n, ok := mbit(threshold); ok && n == 0 {
			c.fault(at+"/threshold", bandwidthFix, "a bandwidth constraint needs a threshold above 0")
		}
	}
}

func portRule(c checker, at string, v *value) {
	if _, err := ParsePorts(v.text); err != nil {
		c.fault(at, "write it as 6080:80/tcp;5353:53/udp", "%s", unkinded(err))
	}
}

// unkinded returns the text of an ErrInvalid error without the text of the kind.
func unkinded(err error) string { return strings.TrimSuffix(err.Error(), ": "+ErrInvalid.Error()) }

func addressRule(c checker, at string, v *value) {
	_, err := netip.ParseAddr(v.text)
	if err != nil && v.text != "" && v.text != "auto" && patterns[addressPattern].MatchString(v.text) {
		c.fault(at, "auto, or an IPv4 address", "%q is not an IPv4 address", v.text)
	}
}

// address6Rule accepts "", "auto" and IPv6 addresses.
func address6Rule(c checker, at string, v *value) {
	if _, ok := chosen6(v.text); !ok && v.text != "" && v.text != "auto" {
		c.fault(at, "auto, or an IPv6 address", "%q is not an IPv6 address", shorten(v.text))
	}
}

// pairRule refuses an IPv6 address that does not end in the IPv4 address of rr_ip. The
// root checks its prefix.
func pairRule(c checker, at string, v *value) {
	six, ok := chosen6(v.get("rr_ip_v6").text)
	four, err := netip.ParseAddr(v.get("rr_ip").text)
	if ok && err == nil && low32(six) != four {
		c.fault(at+"/rr_ip_v6", "leave rr_ip_v6 out: the IPv6 address follows from rr_ip", "%s does not belong to rr_ip %s: its last 32 bits are %s", six, four, low32(six))
	}
}

// chosen6 returns the IPv6 address in an SLA, and whether there is one.
func chosen6(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	return a, err == nil && a.Is6() && !a.Is4In6() && a.Zone() == ""
}

func low32(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:]))
}

func nameRule(c checker, at string, v *value) {
	if strings.EqualFold(v.text, TenantLabel) {
		c.fault(at, "choose another name", "%q is reserved: in DNS it separates a service's name from its tenant", v.text)
	}
}

func callersRule(c checker, at string, v *value) {
	for i := range v.items {
		if v.items[i].text == "none" && len(v.items) > 1 {
			c.fault(at+"/"+itoa(i), "leave out none, or the others", "none cannot be combined with other callers")
		}
	}
}

// maxAddressed limits the instances of a service with addresses of their own.
const maxAddressed = 1024

func rangesRule(c checker, at string, v *value) {
	type span struct{ from, to int }
	var seen []span
	sum := 0
	for i := range v.items {
		from, err1 := strconv.Atoi(v.items[i].get("from").text)
		to, err2 := strconv.Atoi(v.items[i].get("to").text)
		here := at + "/" + itoa(i)
		switch {
		case err1 != nil || err2 != nil || from < 0 || to >= MaxReplicas:
			continue // has a fault already
		case to < from:
			c.fault(here+"/to", "write a number of at least from", "to is %d, less than from (%d)", to, from)
			continue
		case slices.ContainsFunc(seen, func(s span) bool { return from <= s.to && s.from <= to }):
			c.fault(here, "make the ranges disjoint", "instances %d to %d overlap an earlier range", from, to)
		}
		seen = append(seen, span{from, to})
		if sum += to - from + 1; sum > maxAddressed {
			c.fault(at, "request fewer addresses", "addresses for %d instances, want at most %d", sum, maxAddressed)
			return
		}
	}
}

func platformRule(c checker, at string, v *value) {
	platform := v.get("platform").text
	arch, ok := strings.CutPrefix(platform, "linux/")
	if !ok || !patterns[platformPattern].MatchString(platform) {
		return
	}
	if !slices.Contains(Arches, arch) {
		c.fault(at+"/platform", fixEnum(lookup[servicePath+"/arch/*"], arch), "platform %q names an unknown processor", shorten(platform))
		return
	}
	for i, a := range v.get("arch").items {
		if a.text != arch {
			c.fault(at+"/arch/"+itoa(i), "write only "+arch+" in arch, or leave arch out",
				"arch %q contradicts platform %q", shorten(a.text), platform)
		}
	}
}

func environmentRule(c checker, at string, v *value) {
	c.once(at, "", "keep one of them", v.items, func(v *value) string {
		key, _, ok := strings.Cut(v.text, "=")
		if !ok {
			return "" // has a fault already
		}
		return key
	})
}
