package wire_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus/parts"
	"github.com/treeline-edge/treeline/internal/wire"
)

// peerOf returns a peer whose record has a realistic size.
func peerOf(rng *rand.Rand, key byte) api.Peer {
	text := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	return api.Peer{
		Key: api.PeerKey{key}, Cluster: "c1", Node: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/26")},
		Endpoints: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.10:40000")}, Chain: [][]byte{text(470), text(430)}, Proof: text(71),
		Coord: &api.Coordinate{Vec: make([]float64, 8)}, Rev: rng.Uint64N(3),
	}
}

func TestRecordsAreTheSameWithPeersWrittenOnce(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		some := func() api.Peer {
			switch rng.IntN(4) {
			case 0: // another peer with the same key
				return peerOf(rng, byte(rng.IntN(5)))
			case 1: // a peer with its key only
				return api.Peer{Key: api.PeerKey{byte(rng.IntN(5))}}
			}
			return peerOf(rand.New(rand.NewPCG(7, 7)), byte(rng.IntN(5)))
		}
		var want wire.Records
		for n := range rng.IntN(8) {
			r := api.Route{Service: api.ServiceID(fmt.Sprint("s", n)), Rev: rng.Uint64()}
			for range rng.IntN(4) {
				r.Peers = append(r.Peers, some())
			}
			want.Routes = append(want.Routes, r)
			want.Sources = append(want.Sources, wire.Source{Address: netip.AddrFrom4([4]byte{10, 16, 0, byte(n)}), Peer: some()})
		}
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got wire.Records
		if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %v\n%s\nis read as %+v", seed, err, text, got)
		}
		full := struct{ Routes []api.Route }{want.Routes}
		if text, err = json.Marshal(full); err != nil {
			t.Fatal(err)
		}
		got = wire.Records{}
		if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got.Routes, want.Routes) {
			t.Fatalf("seed %d: written in full it is read as %+v (%v)", seed, got, err)
		}
	}
}

// The routes that a node may need (1,000 to 10,000, with 100 peers) fit into a message of the bus.
func TestAllOfANodesRoutesFitIntoAMessage(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var peers []api.Peer
	for i := range byte(100) {
		peers = append(peers, peerOf(rng, i))
	}
	for _, tt := range []struct{ routes, replicas int }{{1000, 9}, {4000, 3}, {10000, 1}, {10000, 2}} {
		d := wire.NetDown{Whole: true}
		for i := range tt.routes {
			s := api.ServiceID(fmt.Sprintf("acme/shop.prod.service-%d.prod", i))
			r := api.Route{Service: s, Rev: 1 << 33, Addresses: api.ServiceAddresses{RoundRobin: netip.MustParseAddr("10.30.100.100")}}
			for j := range tt.replicas {
				p := peers[(i*7+j)%100]
				r.Peers = append(r.Peers, p)
				r.Backends = append(r.Backends, api.Backend{
					Instance: s.Instance(j), Epoch: 1 << 25, Address: netip.MustParseAddr("10.16.100.107"), Peer: p.Key, State: api.BackendUp,
				})
			}
			d.Routes = append(d.Routes, r)
		}
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d routes of %d: %.1f MiB", tt.routes, tt.replicas, float64(len(text))/(1<<20))
		if _, err := parts.Split(text); err != nil {
			t.Errorf("%d routes of %d are %d bytes: %v", tt.routes, tt.replicas, len(text), err)
		}
	}
}

func TestAPeerThatIsTheSameAsNoneIsItsKey(t *testing.T) {
	var r wire.Records
	text := `{"routes":[{"service":"a/b.c.d.e","peers":[{"key":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE","again":true}]}],"sources":null}`
	if err := json.Unmarshal([]byte(text), &r); err != nil || len(r.Routes[0].Peers) != 1 || r.Routes[0].Peers[0].Chain != nil {
		t.Errorf("decoded message is %+v (%v), want one route with one peer without a chain", r, err)
	}
	if err := json.Unmarshal([]byte(`{"routes":{}}`), &r); err == nil {
		t.Error("an object is read as a list")
	}
}

// TestRecordsAreAppendedWhole fails if Append omits a list of Records.
func TestRecordsAreAppendedWhole(t *testing.T) {
	var one wire.Records
	lists := reflect.ValueOf(&one).Elem()
	for i := range lists.NumField() {
		lists.Field(i).Set(reflect.MakeSlice(lists.Field(i).Type(), 1, 1))
	}
	var r wire.Records
	r.Append(one)
	r.Append(one)
	gone := reflect.ValueOf(r.Removals())
	for i := range lists.NumField() {
		name := lists.Type().Field(i).Name
		if n := reflect.ValueOf(r).Field(i).Len(); n != 2 {
			t.Errorf("%d of %s, want 2", n, name)
		}
		if kept, removal := gone.Field(i).Len() == 2, strings.HasPrefix(name, "Removed"); kept != removal {
			t.Errorf("%s among removals: %v", name, kept)
		}
	}
}
