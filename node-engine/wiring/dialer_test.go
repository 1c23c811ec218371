package wiring

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/node-engine/node"
)

func TestEndpointsOfTheBrokersFromTheJoinAndTheCluster(t *testing.T) {
	const own, first, second, third = "c:7444", "b1:8883", "b2:8883", "b3:8883"
	for _, k := range []struct {
		what      string
		creds     clusterlink.Credentials
		to        []string
		want      []string
		keepAlive time.Duration
	}{
		{"a cluster of an earlier release, embedded", clusterlink.Credentials{}, nil, []string{own}, 0},
		{"a cluster of an earlier release", clusterlink.Credentials{MQTT: "mqtts://b1"}, nil, []string{first}, 0},
		{"embedded", clusterlink.Credentials{Brokers: []string{"embedded"}}, nil, []string{own}, 0},
		{"two from the join", clusterlink.Credentials{MQTT: "mqtts://b1", Brokers: []string{"mqtts://b1", "mqtts://b2"}}, nil, []string{first, second}, otherKeepAlive},
		{"one of them was replaced", clusterlink.Credentials{Brokers: []string{"mqtts://b1", "mqtts://b2"}}, []string{"mqtts://b3", "mqtts://b2"}, []string{third, second, first}, otherKeepAlive},
		{"one remains", clusterlink.Credentials{Brokers: []string{"mqtts://b1", "mqtts://b2"}}, []string{"mqtts://b2"}, []string{second, first}, 0},
		{"one of them cannot be dialled", clusterlink.Credentials{Brokers: []string{"http://b1", "mqtts://b2"}}, nil, []string{second}, otherKeepAlive},
	} {
		k.creds.URL = "https://" + own
		d, err := newDialer(k.creds)
		if err != nil {
			t.Errorf("%s: %v", k.what, err)
			continue
		}
		d.set(node.Dial{Brokers: k.to})
		var got []string
		for _, e := range d.Endpoints() {
			got = append(got, e.Addr)
			if e.KeepAlive != k.keepAlive {
				t.Errorf("%s: keep-alive at %s is %s, want %s", k.what, e.Addr, e.KeepAlive, k.keepAlive)
			}
			if (e.Addr == own) != (len(e.NextProtos) == 1) {
				t.Errorf("%s: protocols at %s are %q, want mqtt at the cluster's port only", k.what, e.Addr, e.NextProtos)
			}
		}
		if !slices.Equal(got, k.want) {
			t.Errorf("%s: endpoints %q, want %q", k.what, got, k.want)
		}
	}
	if _, err := newDialer(clusterlink.Credentials{URL: "https://" + own, MQTT: "http://b1"}); err == nil {
		t.Error("no broker that can be dialled: no error")
	}
}
