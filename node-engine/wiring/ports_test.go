package wiring

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestPortsThatStayAreTheNodesOwn(t *testing.T) {
	ssh, db, client := api.HostPort{Port: 22, Protocol: "tcp"}, api.HostPort{Port: 5432, Protocol: "tcp"}, api.HostPort{Port: 40000, Protocol: "udp"}
	var now []api.HostPort
	p := &ports{publish: []api.PortRange{{First: 1024, Last: 65535}}, own: func() ([]api.HostPort, error) { return now, nil }, log: slog.Default()}
	for i, x := range []struct {
		now, says []api.HostPort
		news      bool
	}{
		{[]api.HostPort{ssh, db}, []api.HostPort{db}, true}, // nobody may publish 22 anyway
		{[]api.HostPort{ssh, db, client}, []api.HostPort{db}, false},
		{[]api.HostPort{ssh, db}, []api.HostPort{db}, false},
		{[]api.HostPort{ssh, client}, nil, true},
		{[]api.HostPort{ssh, client}, []api.HostPort{client}, true},
	} {
		now = x.now
		if news := p.look(); news != x.news || !slices.Equal(p.Says().Own, x.says) {
			t.Errorf("look %d at %v: news %v, own %v", i, x.now, news, p.Says().Own)
		}
	}
}
