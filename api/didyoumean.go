package api

import "strings"

// synonyms maps common words to the names of fields, the first of which that an object has is meant. A
// value that begins with "_" is a suffix.
var synonyms = map[string]string{
	"image": "code", "command": "cmd", "entrypoint": "cmd", "services": "microservices", "apps": "applications",
	"ram": "memory", "cpu": "vcpus", "cpus": "vcpus", "cores": "vcpus", "runtime": "virtualization", "env": "environment",
	"instances": "replicas", "autoscaling": "scale", "hpa": "scale", "architecture": "arch", "ports": "port", "version": "sla_version",
	"gpu": "vgpus", "gpus": "vgpus", "tpu": "vtpus", "tpus": "vtpus", "disk": "storage", "radius": "threshold", "distance": "threshold",
	"max": "threshold", "country": "area", "region": "area", "place": "area", "coordinates": "location", "corners": "polygon", "topology": "by",
	"affinity": "constraints labels", "antiaffinity": "anti_affinity", "node_selector": "constraints labels", "target": "target_microservice_id",
	"description": "application_desc", "oneshot": "one_shot", "retries": "max_attempts", "backoffLimit": "max_attempts", "activeDeadlineSeconds": "deadline", "ttl": "time_to_live", "name": "_name", "namespace": "_namespace",
}

// didYouMean returns the known word that is most similar to a key, or "".
func didYouMean(key string, known []string) string {
	if len(key) > 40 {
		return ""
	}
	plain := strings.ReplaceAll(strings.ToLower(key), "-", "_")
	for _, s := range strings.Fields(synonyms[plain]) {
		for _, k := range known {
			if k == s || s[0] == '_' && strings.HasSuffix(k, s) {
				return k
			}
		}
	}
	best, least := "", len(plain)/3+1 // limits the distance, so that short words do not match everything
	for _, k := range known {
		if d := EditDistance(plain, strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// EditDistance returns the number of bytes to change, add, remove or swap with a neighbour to
// turn a into b (optimal string alignment). Its time is the product of their lengths.
func EditDistance(a, b string) int {
	two, one, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range one {
		one[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(one[j]+1, row[j-1]+1, one[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], two[j-2]+1)
			}
		}
		two, one, row = one, row, two
	}
	return one[len(b)]
}
