package api

import (
	"slices"
	"strings"
)

const (
	healthPath = servicePath + "/health"

	checkPathPattern   = `^(/[!-~]*)?$`
	checkHeaderPattern = `^[A-Za-z0-9_-]{1,64}:[ -~]*$`
	checkStatusPattern = `^([1-5][0-9]{2}(-[1-5][0-9]{2})?)?$`
	checkGRPCPattern   = `^[!-~]*$`
	fixCheckPath       = "a path with its query, without spaces: /healthz?full=1"
	fixCheckHeader     = "Name: value, in printable ASCII"
	fixCheckStatus     = "a status or a range of them: 204, 200-399"
	fixCheckGRPC       = "the full name of a gRPC service, without spaces: shop.v1.Cart"
)

// healthFields returns the fields of `health`. The kinds of checks differ in their defaults, and in
// `successes`.
func healthFields() []Field {
	out := []Field{
		{
			Pointer: healthPath, Type: ObjectField,
			Doc:  "Health checks, which the node runs even without its cluster (Treeline's own). Without this field the `HEALTHCHECK` of the image counts: until it has passed the instance gets no flows, and its failure restarts. It runs only on nodes that support health checks.",
			Rule: "`none` not with checks",
		},
		{Pointer: healthPath + "/none", Type: BooleanField, Default: "false", Doc: "The `HEALTHCHECK` of the image does not count."},
	}
	for _, k := range []struct {
		kind     CheckKind
		failures int
		doc      string
	}{
		{CheckStartup, DefaultStartupFailures, "Until it has passed once, the other checks do not run and the instance gets no flows. If it fails, the instance is restarted with the usual back-off."},
		{CheckReadiness, DefaultCheckFailures, "The instance gets new flows only while it passes. Without it and without `startup`, an instance gets flows when it listens."},
		{CheckLiveness, DefaultCheckFailures, "If it fails, the instance is restarted with the usual back-off."},
	} {
		out = append(out, checkFields(healthPath+"/"+string(k.kind), k.kind, k.failures, k.doc)...)
	}
	return out
}

func checkFields(at string, kind CheckKind, failures int, doc string) []Field {
	port := func(of string) Field {
		return Field{
			Pointer: at + of + "/port", Type: IntegerField, Required: true, Min: 1, Max: 65535,
			Doc: "The port on which the instance itself listens.",
		}
	}
	out := []Field{
		{Pointer: at, Type: ObjectField, Doc: doc, Rule: "exactly one of `http`, `tcp`, `grpc` and `command`"},
		{
			Pointer: at + "/http", Type: ObjectField,
			Doc: "A GET request to the instance's own address. Redirects are not followed, and at most 16 KiB of headers and 64 KiB of the body are read.",
		},
		port("/http"),
		{Pointer: at + "/http/path", Type: StringField, Length: 1024, Pattern: checkPathPattern, Default: "`/`", Doc: "The path, with a query if it needs one."},
		{
			Pointer: at + "/http/scheme", Type: StringField, Enum: []string{"", "http", "https"}, Default: "`http`",
			Doc: "The protocol. The certificate is not verified: the node connects to the instance itself.",
		},
		{
			Pointer: at + "/http/headers", Type: ArrayField, Max: MaxCheckHeaders, Doc: "Further headers of the request; `Host` replaces the default, which is the address.",
			Rule: "no header twice; none that controls the connection, such as `Connection` or `Content-Length`",
		},
		{Pointer: at + "/http/headers/*", Type: StringField, Length: 1024, Pattern: checkHeaderPattern, Doc: "`Name: value`."},
		{
			Pointer: at + "/http/status", Type: StringField, Pattern: checkStatusPattern, Default: "`200-399`",
			Doc: "The statuses with which the check passes.", Rule: "the first not above the last",
		},
		{Pointer: at + "/tcp", Type: ObjectField, Doc: "A TCP connection, which is closed again."},
		port("/tcp"),
		{Pointer: at + "/grpc", Type: ObjectField, Doc: "A call of `grpc.health.v1.Health/Check` without TLS; it passes with `SERVING`."},
		port("/grpc"),
		{Pointer: at + "/grpc/service", Type: StringField, Length: 256, Pattern: checkGRPCPattern, Default: "the whole server", Doc: "The service in the request."},
		{
			Pointer: at + "/command", Type: ArrayField, Max: MaxCheckCommand,
			Doc: "A program with its arguments that runs in the instance, without a shell; it passes with exit code 0. It runs only on nodes whose runtime can run it.",
		},
		{Pointer: at + "/command/*", Type: StringField, Length: 4096, Doc: "One argument."},
		{
			Pointer: at + "/interval", Type: IntegerField, Unit: "s", Max: MaxCheckInterval, Default: itoa(DefaultCheckInterval),
			Doc:  "The time between the beginnings of two checks. Until the instance has passed for the first time, it is also checked in between. 0 means the default.",
			Rule: "at least " + itoa(MinCommandInterval) + " for `command`",
		},
		{Pointer: at + "/timeout", Type: IntegerField, Unit: "s", Max: MaxCheckTimeout, Default: itoa(DefaultCheckTimeout), Doc: "The time in which a check must pass. 0 means the default."},
		{Pointer: at + "/initial_delay", Type: IntegerField, Unit: "s", Max: MaxCheckDelay, Default: "0", Doc: "The time from the start of the instance to the first check."},
	}
	successes := Field{
		Pointer: at + "/successes", Type: IntegerField, Max: MaxCheckSuccesses, Default: itoa(DefaultCheckSuccesses),
		Doc: "The number of checks in a row that must pass until the check has passed. 0 means the default.",
	}
	if kind == CheckLiveness { // one success ends a row of failures
		successes.Max, successes.Doc = 1, "Only 1, the default: one check that passes ends a row of failures."
	}
	return append(out, successes, Field{
		Pointer: at + "/failures", Type: IntegerField, Max: MaxCheckFailures, Default: itoa(failures),
		Doc: "The number of checks in a row, each an interval apart, that must fail before the check has failed. 0 means the default.",
	})
}

func healthRule(c checker, at string, v *value) {
	if !v.get("none").truth {
		return
	}
	for _, kind := range []CheckKind{CheckStartup, CheckReadiness, CheckLiveness} {
		if !neutral(v.get(string(kind))) {
			c.fault(at+"/none", "leave out none or "+string(kind), "none cannot be combined with %s", kind)
		}
	}
}

// checkWays are the ways to check, of which a check has exactly one.
var checkWays = []string{"http", "tcp", "grpc", "command"}

func checkRule(c checker, at string, v *value) {
	if neutral(v) {
		return
	}
	given := slices.DeleteFunc(slices.Clone(checkWays), func(key string) bool { return v.get(key).kind == "" || key == "command" && neutral(v.get(key)) })
	switch kind := afterLast(at, '/'); {
	case len(given) == 0:
		c.fault(at, "give one of "+strings.Join(checkWays, ", "), "a %s check needs one of %s", kind, strings.Join(checkWays, ", "))
	case len(given) > 1:
		c.fault(at+"/"+given[1], "keep one of them", "a %s check takes one of %s; it has %s, too", kind, strings.Join(checkWays, ", "), given[0])
	}
	if interval := v.get("interval"); slices.Contains(given, "command") && !neutral(interval) && len(interval.text) == 1 && interval.text < "5" {
		c.fault(at+"/interval", "at least 5 s", "interval is %s, too short for a command", interval.text)
	}
	if first := v.get("command").items; len(first) > 0 && first[0].kind == StringField && first[0].text == "" {
		c.fault(at+"/command/0", "name the program", "command has no program")
	}
	http := v.get("http")
	headersRule(c, at+"/http/headers", http.get("headers"))
	if s := http.get("status"); s.text != "" && patterns[checkStatusPattern].MatchString(s.text) {
		if _, _, ok := StatusRange(s.text); !ok {
			c.fault(at+"/http/status", fixCheckStatus, "status %q ends before it begins", s.text)
		}
	}
}

// connectionHeaders control the connection or the length of the request, which the node sets.
var connectionHeaders = []string{"connection", "content-length", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}

func headersRule(c checker, at string, v *value) {
	name := func(v *value) string {
		name, _, _ := strings.Cut(v.text, ":")
		return strings.ToLower(name)
	}
	c.once(at, "", "keep one of them", v.items, name)
	for i := range v.items {
		if n := name(&v.items[i]); slices.Contains(connectionHeaders, n) {
			c.fault(at+"/"+itoa(i), "leave it out: the node sets it", "header %s controls the connection", n)
		}
	}
}
