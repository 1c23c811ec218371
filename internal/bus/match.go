package bus

import "strings"

// Match reports whether an MQTT topic filter matches a topic. Filters that begin
// with a wildcard match no topic that begins with "$".
func Match(filter, topic string) bool {
	if strings.HasPrefix(topic, "$") && !strings.HasPrefix(filter, "$") {
		return false
	}
	for {
		f, restFilter, moreFilter := strings.Cut(filter, "/")
		if f == "#" {
			return true
		}
		t, restTopic, moreTopic := strings.Cut(topic, "/")
		if f != "+" && f != t {
			return false
		}
		if !moreTopic {
			return !moreFilter || restFilter == "#"
		}
		if !moreFilter {
			return false
		}
		filter, topic = restFilter, restTopic
	}
}

// ValidFilter reports whether s is a topic filter: + and # are whole levels, and # is the
// last.
func ValidFilter(s string) bool {
	if s == "" || len(s) > 1<<16-1 {
		return false
	}
	for more := true; more; {
		var level string
		level, s, more = strings.Cut(s, "/")
		if level == "#" && more || len(level) > 1 && strings.ContainsAny(level, "+#") {
			return false
		}
	}
	return true
}
