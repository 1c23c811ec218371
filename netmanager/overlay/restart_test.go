package overlay

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// Nobody can decrypt what peers send in a session of an earlier process. Flows stand still until the
// peers notice.
func TestARestartOpensSessionsWithFormerPeers(t *testing.T) {
	w := peered(t)
	w.step(Path{Key: key(2), Kind: api.PathDirect, Addr: netip.MustParseAddrPort("192.168.2.12:7000"), Idle: true})
	w.step(Path{Key: key(3), Kind: api.PathNone, Idle: true}) // no session yet
	for range 2 {                                             // the second process ends before it has received anything
		w.c = New(w.cfg)
		if err := w.c.Restore(slices.Collect[store.Doc](maps.Values(w.docs))); err != nil {
			t.Fatal(err)
		}
		var begun []api.PeerKey
		known := map[api.PeerKey]bool{}
		for _, e := range w.step(Start{}).Send {
			switch m := e.Msg.(type) {
			case TunnelPeer:
				known[m.Key] = true
			case TunnelMeasure:
				if !known[m.Key] {
					t.Errorf("the tunnel does not know %s yet", m.Key)
				}
				begun = append(begun, m.Key)
			}
		}
		if want := []api.PeerKey{key(1), key(3)}; !slices.Equal(begun, want) {
			t.Fatalf("it talks with %v, want %v", begun, want)
		}
		for n := byte(1); n <= 3; n++ {
			w.step(Path{Key: key(n), Kind: api.PathNone, Idle: true})
		}
	}
}
