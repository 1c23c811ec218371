package api

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// rules are the checks of fields beyond the table (Field.Rule). A rule must tolerate values
// that have other faults, and must not report those.
var rules map[string]func(c checker, at string, v *value)

func init() { // not a literal: a rule reaches the table, which reaches the rules
	rules = map[string]func(checker, string, *value){
		"/applications":                unique("application_name", "application_namespace"),
		appPath + "/microservices":     unique("microservice_name", "microservice_namespace"),
		appPath:                        siblingsRule,
		servicePath:                    serviceRule,
		servicePath + "/environment":   environmentRule,
		servicePath + "/arch":          archRule,
		servicePath + "/constraints":   narrowingRule,
		constraintPath:                 constraintRule,
		constraintPath + "/location":   locationRule,
		constraintPath + "/polygon":    polygonRule,
		constraintPath + "/target":     targetRule,
		servicePath + "/devices":       devicesRule,
		linkPath + "/con_constraints":  onceRule("type", "put it in once"),
		servicePath + "/connectivity":  onceRule("target_microservice_id", "put all of its con_constraints together"),
		boundPath:                      linkRule,
		servicePath + "/bandwidth_in":  mbitRule,
		servicePath + "/bandwidth_out": mbitRule,
		servicePath + "/port":          portRule,
		servicePath + "/callers":       callersRule,
		addressesPath + "/instances":   rangesRule,

		appPath + "/application_name":           nameRule,
		appPath + "/application_namespace":      nameRule,
		servicePath + "/microservice_name":      nameRule,
		servicePath + "/microservice_namespace": nameRule,

		addressesPath:                        twinRule,
		addressesPath + "/rr_ip_v6":          address6Rule,
		addressesPath + "/rr_ip":             addressRule,
		addressesPath + "/closest_ip":        addressRule,
		addressesPath + "/instances/*/start": addressRule,
	}
}

// unique refuses two entries with the same name and namespace.
func unique(name, namespace string) func(checker, string, *value) {
	return func(c checker, at string, v *value) {
		seen := map[string]int{}
		for i := range v.items {
			id := v.items[i].get(name).text + "." + v.items[i].get(namespace).text
			if first, ok := seen[id]; ok && id != "." {
				c.fault(at+"/"+itoa(i)+"/"+name, name, "rename one or merge them", "%q is at %s/%d already", shorten(id), at, first)
				continue
			}
			seen[id] = i
		}
	}
}

func serviceRule(c checker, at string, v *value) {
	if v.get("virtualization").text == "unikernel" {
		c.fault(at+"/virtualization", "virtualization", "build a container image of it", "no node runs unikernels")
	} else if code := v.get("code"); code.kind == StringField {
		wrong, fix := imageFault(code.text)
		if v.get("virtualization").text == "process" {
			wrong, fix = fileFault(code.text)
		}
		if wrong != "" {
			c.fault(at+"/code", "code", fix, "code %s", wrong)
		}
	}
	if v.get("exclusive").truth && v.get("on_disconnect").text == string(KeepRunning) {
		c.fault(at+"/on_disconnect", "on_disconnect", "leave one of them out",
			"an exclusive service cannot keep running when cut off: it might then run twice")
	}
	if !neutral(v.get("max_attempts")) && !v.get("one_shot").truth {
		c.fault(at+"/max_attempts", "max_attempts", "add one_shot: true, or leave max_attempts out",
			"max_attempts bounds a one_shot; any other service is started again without end")
	}
	platformRule(c, at, v)
	processRule(c, at, v)
	networkRule(c, at, v)
	totalDevicesRule(c, at, v)
}

// processRule refuses what a process cannot have: it uses its node's network, and nothing
// keeps it from devices that it was not given.
func processRule(c checker, at string, v *value) {
	if v.get("virtualization").text != "process" {
		return
	}
	for _, name := range []string{"port", "bandwidth_in", "bandwidth_out", "addresses", "callers", "calls"} {
		if !neutral(v.get(name)) {
			c.fault(at+"/"+name, name, "run it as a container, or leave "+name+" out", "%s is not supported for a process, which uses its node's network", name)
		}
	}
	if v.get("network").text == NetworkOverlay {
		c.fault(at+"/network", "network", "run it as a container, or leave network out", "network: overlay is not supported for a process, which uses its node's network")
	}
	for _, name := range []string{"vgpus", "vtpus", "devices"} {
		if !neutral(v.get(name)) {
			c.fault(at+"/"+name, name, "run it as a container, or leave "+name+" out", "%s cannot be honoured for a process, which is not kept from its node's other devices", name)
		}
	}
	for i, link := range v.get("connectivity").items {
		for k, need := range link.get("con_constraints").items {
			if need.get("type").text == LinkBandwidth {
				c.fault(at+"/connectivity/"+itoa(i)+"/con_constraints/"+itoa(k)+"/type", "type", "run it as a container, or leave it out",
					"bandwidth is not supported for a process, which uses its node's network")
			}
		}
	}
}

// networkRule refuses features of the overlay network for a service that opts out of it.
func networkRule(c checker, at string, v *value) {
	if v.get("network").text != NetworkAny || v.get("virtualization").text == "process" {
		return
	}
	for _, name := range []string{"port", "bandwidth_in", "bandwidth_out", "addresses", "callers", "calls"} {
		asks := !neutral(v.get(name))
		if name == "addresses" {
			asks = slices.ContainsFunc(v.get(name).members, func(m member) bool { return !neutral(&m.value) })
		}
		if asks {
			c.fault(at+"/network", "network", "leave network out, or leave "+name+" out", "network: any cannot be together with %s, which only the overlay network has", name)
		}
	}
}

const devicesRuleText = "at most 64 devices of all kinds together; not with `virtualization: process`"

// totalDevicesRule bounds the devices of one instance.
func totalDevicesRule(c checker, at string, v *value) {
	count := func(v *value) int {
		n, _ := strconv.Atoi(v.text) // what is no number is said already
		return max(0, min(n, MaxDevices))
	}
	sum := count(v.get("vgpus")) + count(v.get("vtpus"))
	for i := range v.get("devices").items {
		sum += count(v.get("devices").items[i].get("count"))
	}
	if sum > MaxDevices {
		c.fault(at+"/devices", "devices", "ask for fewer", "%d devices for each instance, at most %d are given", sum, MaxDevices)
	}
}

func devicesRule(c checker, at string, v *value) {
	for i := range v.items {
		name := v.items[i].get("name").text
		if name == DeviceGPU || name == DeviceTPU {
			c.fault(at+"/"+itoa(i)+"/name", "name", "use v"+name+"s", "%s is not a kind of device", name)
		}
	}
	onceRule("name", "add their counts")(c, at, v)
}

// onceRule refuses two entries of a list with the same value of a key.
func onceRule(key, fix string) func(checker, string, *value) {
	return func(c checker, at string, v *value) {
		seen := map[string]bool{}
		for i := range v.items {
			text := v.items[i].get(key).text
			if text != "" && seen[text] {
				c.fault(at+"/"+itoa(i)+"/"+key, key, fix, "%s is given twice", shorten(text))
			}
			seen[text] = true
		}
	}
}

// linkRule checks one constraint of a connectivity.
func linkRule(c checker, at string, v *value) {
	patienceRule(c, at, v)
	threshold := v.get("threshold")
	if threshold.kind == "" {
		return // said already: it is required
	}
	if threshold.kind == StringField && v.get("type").text != LinkBandwidth {
		c.fault(at+"/threshold", "threshold", "a number of ms or km", "threshold of %s cannot be %q", shorten(v.get("type").text), shorten(threshold.text))
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
			c.fault(at+"/threshold", "threshold", bandwidthFix, "a bandwidth constraint needs a threshold above 0")
		}
	}
}

func portRule(c checker, at string, v *value) {
	if _, err := ParsePorts(v.text); err != nil {
		c.fault(at, "port", "6080:80/tcp;5353:53/udp", "%s", strings.TrimSuffix(err.Error(), ": "+ErrInvalid.Error()))
	}
}

func addressRule(c checker, at string, v *value) {
	if s := v.text; s != "" && s != "auto" && patterns[addressPattern].MatchString(s) {
		if _, err := netip.ParseAddr(s); err != nil {
			c.fault(at, afterLast(at, '/'), "auto, or an IPv4 address", "%q is not an IPv4 address", s)
		}
	}
}

// address6Rule accepts "", "auto" and IPv6 addresses.
func address6Rule(c checker, at string, v *value) {
	if _, ok := chosen6(v.text); !ok && v.text != "" && v.text != "auto" {
		c.fault(at, "rr_ip_v6", "auto, or an IPv6 address", "%q is not an IPv6 address", shorten(v.text))
	}
}

// twinRule refuses an IPv6 address that does not end in the IPv4 address of rr_ip. The
// root checks its prefix.
func twinRule(c checker, at string, v *value) {
	six, ok := chosen6(v.get("rr_ip_v6").text)
	four, err := netip.ParseAddr(v.get("rr_ip").text)
	if ok && err == nil && low32(six) != four {
		c.fault(at+"/rr_ip_v6", "rr_ip_v6", twinFix, "%s is not the IPv6 address of rr_ip %s: its last 32 bits are %s", six, four, low32(six))
	}
}

const twinFix = "leave rr_ip_v6 out: the IPv6 address follows from rr_ip"

// chosen6 returns the IPv6 address that an SLA names, if it names one.
func chosen6(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	return a, err == nil && a.Is6() && !a.Is4In6() && a.Zone() == ""
}

// low32 returns the IPv4 address in the last 32 bits of an IPv6 address.
func low32(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:]))
}

// nameRule refuses the name that DNS reserves.
func nameRule(c checker, at string, v *value) {
	if strings.EqualFold(v.text, TenantLabel) {
		c.fault(at, afterLast(at, '/'), "choose another name", "%q is reserved: DNS names have it before a tenant", v.text)
	}
}

func callersRule(c checker, at string, v *value) {
	for i := range v.items {
		if v.items[i].text == "none" && len(v.items) > 1 {
			c.fault(at+"/"+itoa(i), "callers", "leave the others out, or none", "none does not stand beside others")
		}
	}
}

// maxAddressed bounds the instances of a service that have addresses of their own.
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
			continue // said already
		case to < from:
			c.fault(here+"/to", "to", "let to be at least from", "to is %d, below from, which is %d", to, from)
			continue
		case slices.ContainsFunc(seen, func(s span) bool { return from <= s.to && s.from <= to }):
			c.fault(here, "instances", "let the ranges not overlap", "an instance of %d to %d has an address already", from, to)
		}
		seen = append(seen, span{from, to})
		if sum += to - from + 1; sum > maxAddressed {
			c.fault(at, "instances", "give fewer of them an address", "addresses for %d instances, at most %d are given", sum, maxAddressed)
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
		c.fault(at+"/platform", "platform", fixEnum(lookup[servicePath+"/arch/*"], arch), "platform %q names no processor that we know", shorten(platform))
		return
	}
	for i, a := range v.get("arch").items {
		if a.text != arch {
			c.fault(at+"/arch/"+itoa(i), "arch", "let arch name "+arch+" alone, or leave it out",
				"arch %q contradicts platform %q", shorten(a.text), platform)
		}
	}
}

func environmentRule(c checker, at string, v *value) {
	seen := map[string]bool{}
	for i := range v.items {
		key, _, ok := strings.Cut(v.items[i].text, "=")
		if ok && seen[key] {
			c.fault(at+"/"+itoa(i), "environment", "keep one of them", "%s is set twice", shorten(key))
		}
		seen[key] = true
	}
}

func archRule(c checker, at string, v *value) {
	seen := map[string]bool{}
	for i := range v.items {
		if a := v.items[i].text; a != "" && seen[a] {
			c.fault(at+"/"+itoa(i), "arch", "keep one of them", "%s is named twice", shorten(a))
		}
		seen[v.items[i].text] = true
	}
}
