package wiring

import (
	"testing"
)

func TestServiceAddressLeadsToAnotherHost(t *testing.T) {
	for _, plane := range []string{"nft", "ebpf"} {
		t.Run(plane, func(t *testing.T) {
			w := newWorld(t, 2, "--plane", plane)
			client := w.hosts[0].run("client", 0, 1)
			server := w.hosts[1].run("server", 0, 2)
			server.serve(80)
			if got, want := client.ask(vip(2), 80), string(server.key.Instance); got != want {
				t.Errorf("%s answers, want %s", got, want)
			}
		})
	}
}
