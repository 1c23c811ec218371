package wiring

import (
	"slices"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestBrokersThatNodesReceive(t *testing.T) {
	for _, k := range []struct {
		conf BrokerConfig
		want []string
		out  bool
	}{
		{BrokerConfig{}, []string{wire.EmbeddedBroker}, false},
		{BrokerConfig{Next: "mqtts://b:1"}, []string{wire.EmbeddedBroker, "mqtts://b:1"}, true},
		{BrokerConfig{URL: "mqtts://b:1"}, []string{"mqtts://b:1"}, true},
		{BrokerConfig{URL: "mqtts://b:1", Nodes: "mqtts://c:1", Next: wire.EmbeddedBroker}, []string{"mqtts://c:1", wire.EmbeddedBroker}, true},
	} {
		if got := k.conf.known(); !slices.Equal(got, k.want) || k.conf.external() != k.out {
			t.Errorf("%+v: %v, external %v; want %v, %v", k.conf, got, k.conf.external(), k.want, k.out)
		}
	}
	for next, ok := range map[string]bool{"": true, "mqtts://b:1": true, "http://b": false, "b:1": false, wire.EmbeddedBroker: false} {
		c := Defaults()
		c.Broker.Next = next
		if err := c.Validate(); (err == nil) != ok {
			t.Errorf("broker.next %q with the embedded broker: %v, want valid %v", next, err, ok)
		}
	}
}

func TestNodesWithoutTheNextBrokerAreListed(t *testing.T) {
	node := func(id api.NodeID, brokers ...string) api.Node {
		return api.Node{NodeInfo: api.NodeInfo{ID: id, Brokers: brokers}}
	}
	nodes := []api.Node{node("old"), node("now", "a"), node("both", "a", "b")}
	for _, k := range []struct {
		conf BrokerConfig
		want []api.NodeID
	}{
		{BrokerConfig{URL: "a", Next: "b"}, []api.NodeID{"old", "now"}},
		{BrokerConfig{URL: "a"}, nil},
		{BrokerConfig{URL: "b"}, []api.NodeID{"now"}},
	} {
		if got := unawareOf(nodes, k.conf); !slices.Equal(got, k.want) {
			t.Errorf("%+v: %v, want %v", k.conf, got, k.want)
		}
	}
}
