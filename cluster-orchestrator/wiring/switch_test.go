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
		{BrokerConfig{URL: []string{"mqtts://b:1"}}, []string{"mqtts://b:1"}, true},
		{BrokerConfig{URL: []string{"mqtts://b:1", "mqtts://c:1"}, Next: "mqtts://d:1"}, []string{"mqtts://b:1", "mqtts://c:1", "mqtts://d:1"}, true},
		{BrokerConfig{URL: []string{"mqtts://b:1"}, Nodes: []string{"mqtts://c:1"}, Next: wire.EmbeddedBroker}, []string{"mqtts://c:1", wire.EmbeddedBroker}, true},
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
	five := []string{"mqtts://a", "mqtts://b", "mqtts://c", "mqtts://d", "mqtts://e"}
	for _, k := range []struct {
		conf BrokerConfig
		ok   bool
	}{
		{BrokerConfig{URL: five[:4]}, true},
		{BrokerConfig{URL: five}, false},
		{BrokerConfig{URL: five[:4], Next: five[4]}, false},
		{BrokerConfig{URL: five[:2], Next: five[1]}, false},
		{BrokerConfig{URL: []string{"mqtts://a", "mqtts://a"}}, false},
		{BrokerConfig{URL: []string{""}}, false},
		{BrokerConfig{URL: five[:2], Nodes: five[2:4]}, true},
		{BrokerConfig{URL: five[:2], Nodes: five[2:3]}, false},
		{BrokerConfig{Nodes: five[:1]}, false},
	} {
		c := Defaults()
		c.Broker = k.conf
		if err := c.Validate(); (err == nil) != k.ok {
			t.Errorf("%+v: %v, want valid %v", k.conf, err, k.ok)
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
		{BrokerConfig{URL: []string{"a"}, Next: "b"}, []api.NodeID{"old", "now"}},
		{BrokerConfig{URL: []string{"a"}}, nil},
		{BrokerConfig{URL: []string{"b"}}, []api.NodeID{"now"}},
		{BrokerConfig{URL: []string{"a", "b"}}, []api.NodeID{"now"}},
	} {
		if got := unawareOf(nodes, k.conf); !slices.Equal(got, k.want) {
			t.Errorf("%+v: %v, want %v", k.conf, got, k.want)
		}
	}
}
