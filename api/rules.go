package api

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// laterKinds are the constraints of Oakestra that nothing enforces yet.
var laterKinds = []string{"latency", "geo", "addons"}

// rules are what a field must hold beyond what the table can say (Field.Rule).
// A rule sees values that may have faults of their own, and says nothing of those.
var rules map[string]func(c checker, at string, v *value)

func init() { // not a literal: a rule reaches the table, which reaches the rules
	rules = map[string]func(checker, string, *value){
		"/applications":              unique("application_name", "application_namespace"),
		appPath + "/microservices":   unique("microservice_name", "microservice_namespace"),
		servicePath:                  serviceRule,
		servicePath + "/environment": environmentRule,
		servicePath + "/arch":        archRule,
		servicePath + "/constraints": narrowingRule,
		constraintPath:               constraintRule,
		servicePath + "/port":        portRule,
		servicePath + "/callers":     callersRule,
		addressesPath + "/instances": rangesRule,

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
	if code := v.get("code"); code.kind == StringField {
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
	platformRule(c, at, v)
	networkRule(c, at, v)
}

// networkRule refuses what a process cannot have: it lives on its node's network.
func networkRule(c checker, at string, v *value) {
	if v.get("virtualization").text != "process" {
		return
	}
	for _, name := range []string{"port", "bandwidth_in", "bandwidth_out", "addresses", "callers", "calls"} {
		if !neutral(v.get(name)) {
			c.fault(at+"/"+name, name, "run it as a container, or leave "+name+" out", "%s cannot be honoured for a process, which has its node's network and none of its own", name)
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
			c.fault(at, afterLast(at, '/'), "auto, or an IPv4 address", "%q is no IPv4 address", s)
		}
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
			c.fault(here+"/to", "to", "", "to is %d, below from, which is %d", to, from)
			continue
		case slices.ContainsFunc(seen, func(s span) bool { return from <= s.to && s.from <= to }):
			c.fault(here, "instances", "let the ranges not overlap", "an instance of %d to %d has an address already", from, to)
		}
		seen = append(seen, span{from, to})
		if sum += to - from + 1; sum > maxAddressed {
			c.fault(at, "instances", "", "addresses for %d instances, at most %d are given", sum, maxAddressed)
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
			c.fault(at+"/"+itoa(i), "arch", "", "%s is named twice", shorten(a))
		}
		seen[v.items[i].text] = true
	}
}

func constraintRule(c checker, at string, v *value) {
	cluster, node, allowed := v.get("cluster"), v.get("node"), v.get("allowed")
	switch v.get("type").text {
	case "direct":
		if cluster.text == "" && node.text == "" {
			c.fault(at, "constraints", "give cluster, node or both", "a direct constraint that names nothing")
		}
		c.machines(at, "cluster", cluster.text)
		c.machines(at, "node", node.text)
		if len(allowed.items) > 0 {
			c.fault(at+"/allowed", "allowed", "name them in cluster, separated by ;", "allowed belongs to a constraint of type clusters")
		}
	case "clusters":
		if allowed.kind != ArrayField || len(allowed.items) == 0 {
			c.fault(at+"/allowed", "allowed", "list at least one", "a clusters constraint that allows none")
		}
		for _, of := range []struct{ key, text string }{{"cluster", cluster.text}, {"node", node.text}} {
			if of.text != "" {
				c.fault(at+"/"+of.key, of.key, "use a constraint of type direct", "%s does not belong to a constraint of type clusters", of.key)
			}
		}
	}
}

func (c checker) machines(at, key, list string) {
	if strings.TrimSpace(list) == "" {
		return
	}
	for name := range strings.SplitSeq(list, ";") {
		if name = strings.TrimSpace(name); !ValidMachineName(name) {
			c.fault(at+"/"+key, key, fixPattern[machinePattern], "%s cannot be %q", key, shorten(name))
		}
	}
}

// narrowingRule refuses constraints that together leave no cluster or no node.
func narrowingRule(c checker, at string, v *value) {
	var clusters, nodes map[string]bool // nil: all
	for i := range v.items {
		k := &v.items[i]
		var allowed []string
		for _, a := range k.get("allowed").items {
			allowed = append(allowed, a.text)
		}
		clusters = narrow(clusters, allowed)
		clusters = narrow(clusters, split(k.get("cluster").text))
		nodes = narrow(nodes, split(k.get("node").text))
	}
	for _, left := range []struct {
		kind string
		set  map[string]bool
	}{{"cluster", clusters}, {"node", nodes}} {
		if left.set != nil && len(left.set) == 0 {
			c.fault(at, "constraints", "", "the constraints together allow no %s", left.kind)
		}
	}
}

func narrow(set map[string]bool, names []string) map[string]bool {
	if len(names) == 0 {
		return set
	}
	both := map[string]bool{}
	for _, n := range names {
		if set == nil || set[n] {
			both[n] = true
		}
	}
	return both
}

func split(list string) []string {
	var out []string
	for name := range strings.SplitSeq(list, ";") {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	return out
}
