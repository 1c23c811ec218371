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
