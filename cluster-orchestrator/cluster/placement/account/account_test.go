package account

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// TestAccountIsTheSumOfItsInstances changes an account at random and compares what is left
// with a computation from scratch.
func TestAccountIsTheSumOfItsInstances(t *testing.T) {
	const addresses = 3
	capacity := api.Resources{MilliCPU: 8000, MemoryMB: 8000}
	devices := DevicesOf(gpus("a", "b", "c"))
	ports := []sched.Port{{Protocol: "tcp", Number: 80}, {Protocol: "udp", Number: 53}}
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 5))
		n := &Node{}
		n.Describe(capacity, devices)
		n.SetAddresses(addresses)
		claims, published := map[api.InstanceID]Claim{}, map[api.InstanceID][]sched.Port{}
		urgency, given := map[api.InstanceID]int{}, map[api.InstanceID][]string{}
		for range 200 {
			id := api.InstanceID(fmt.Sprintf("i%d", rng.IntN(5)))
			switch rng.IntN(7) {
			case 0, 1:
				claims[id] = Claim{Resources: api.Resources{MilliCPU: int64(rng.IntN(3000))}, Address: rng.IntN(2) == 0}
				if rng.IntN(2) == 0 {
					claims[id] = Claim{Resources: claims[id].Resources, Devices: []api.Device{{Name: api.DeviceGPU, Count: 1}}}
				}
				n.Book(id, claims[id])
			case 2:
				published[id] = ports[:rng.IntN(3)]
				n.Publish(id, published[id])
				n.Republish(id, published[id])
			case 3:
				delete(claims, id)
				delete(published, id)
				n.Release(id)
			case 4:
				urgency[id] = rng.IntN(Urgencies)
				n.Assign(id, urgency[id])
			case 5:
				delete(urgency, id)
				n.Unassign(id)
			case 6:
				given[id] = []string{"a", "b", "c"}[:rng.IntN(3)]
				n.SetDevices(id, given[id])
			}
			check(t, n.Left(), n.BookedByUrgency(), capacity, devices, addresses, claims, published, urgency, given)
			others, otherPorts := maps.Clone(claims), maps.Clone(published)
			delete(others, id)
			delete(otherPorts, id)
			check(t, n.Without(id), n.BookedByUrgency(), capacity, devices, addresses, others, otherPorts, nil, given)
			c := n.Clone()
			c.Release(id)
			c.Publish("new", ports)
			check(t, n.Left(), n.BookedByUrgency(), capacity, devices, addresses, claims, published, urgency, given)
		}
	}
}

// check compares what is left. The yields are not checked without urgencies.
func check(t *testing.T, left Left, yields [Urgencies]api.Resources, capacity api.Resources, d Devices, addresses int,
	claims map[api.InstanceID]Claim, ports map[api.InstanceID][]sched.Port, urgency map[api.InstanceID]int, given map[api.InstanceID][]string,
) {
	t.Helper()
	free, addressed, published := capacity, 0, map[sched.Port]int{}
	var want [Urgencies]api.Resources
	for id, k := range claims {
		free = free.Minus(k.Resources)
		addressed += boolInt(k.Address)
		if u, ok := urgency[id]; ok {
			want[u] = want[u].Plus(k.Resources)
		}
	}
	for _, ps := range ports {
		for _, p := range ps {
			published[p]++
		}
	}
	if left.Free != free || left.Full != (addressed >= addresses) || !maps.Equal(left.Ports, published) || !maps.Equal(left.Devices, d.Free(claims, given)) {
		t.Fatalf("left is %+v, want %v free, %d of %d addresses, ports %v, devices %v", left, free, addressed, addresses, published, d.Free(claims, given))
	}
	if urgency != nil && yields != want {
		t.Fatalf("yields are %v, want %v", yields, want)
	}
}

func TestFitsOnlyWithoutTheOthers(t *testing.T) {
	http := sched.Port{Protocol: "tcp", Number: 80}
	n := &Node{}
	n.Describe(api.Resources{MilliCPU: 1000}, DevicesOf(gpus("a")))
	n.SetAddresses(1)
	n.Book("old", Claim{Resources: api.Resources{MilliCPU: 600}, Address: true, Devices: []api.Device{{Name: api.DeviceGPU, Count: 1}}})
	n.Publish("old", []sched.Port{http})
	for name, d := range map[string]Demand{
		"processor": {Claim: Claim{Resources: api.Resources{MilliCPU: 500}}},
		"address":   {Claim: Claim{Address: true}},
		"device":    {Claim: Claim{Devices: []api.Device{{Name: api.DeviceGPU, Count: 1}}}},
		"port":      {Ports: []sched.Port{http}},
	} {
		if n.FitsWithout(nil, d, nil) {
			t.Errorf("%s: it fits beside the other instance, want that it does not", name)
		}
		if !n.FitsWithout(map[api.InstanceID]bool{"old": true}, d, nil) {
			t.Errorf("%s: it does not fit without the other instance, want that it does", name)
		}
	}
	if n.FitsWithout(nil, Demand{Ports: []sched.Port{{Protocol: "tcp", Number: 22}}}, &api.NodePorts{}) {
		t.Error("a port fits that may not be published on the node")
	}
}
