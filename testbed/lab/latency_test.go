package lab_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// Idle nodes have links of different latency: the cluster learns the round trips between them
// and places instances by them.
func TestPlacementKnowsHowFarNodesAre(t *testing.T) {
	t.Parallel()
	o := &lab.Overlay{Lab: lab.New(t, lab.Options{}), Net: netlab.New(t)}
	hub := o.Net.Host("hub")
	hub.Run("sysctl", "-qw", "net.ipv4.ip_forward=1")
	h := o.Net.Host("c1")
	o.Net.Join(h, "eth0", "203.0.113.2/30", hub, "c1", "203.0.113.1/30")
	h.Route("default", "203.0.113.1")
	o.First = o.Cluster("c1", lab.ClusterOptions{Host: h, Address: "203.0.113.2"})
	delays := []time.Duration{4 * time.Millisecond, 6 * time.Millisecond, 40 * time.Millisecond, 60 * time.Millisecond}
	cables := make([]*netlab.Slow, len(delays))
	for i, d := range delays {
		h := o.Net.Host(fmt.Sprintf("h%d", i))
		cables[i] = o.Net.Slow(h, "eth0", fmt.Sprintf("198.51.100.%d/30", 4*i+2), hub, fmt.Sprintf("n%d", i), fmt.Sprintf("198.51.100.%d/30", 4*i+1), d, 0, uint64(i))
		h.Route("default", fmt.Sprintf("198.51.100.%d", 4*i+1))
		o.Nodes = append(o.Nodes, o.First.Node(fmt.Sprintf("n%d", i), lab.NodeOptions{Containers: true, CPUs: 2, Host: h, Overlay: true}))
	}
	o.Ready(o.First, len(delays))
	// n0 and n1 are 20 ms apart, and n0 and the others 88 and 128.
	learned(t, o, func(apart func(i, j int) time.Duration) bool {
		return apart(0, 1) < 30*time.Millisecond && min(apart(0, 2), apart(0, 3)) > 65*time.Millisecond
	})

	near := lab.Needing(o.Container("near", 1), 1, 100)
	near.Connectivity = []api.Connectivity{{Target: "db." + lab.Namespace, Constraints: []api.LinkConstraint{{Type: api.LinkLatency, Threshold: 45}}}}
	o.Apply(lab.App("shop", lab.On(lab.Needing(o.Server("db", 1), 2, 100), "c1", "n0"))) // fills n0
	o.Wait("the database runs", o.Running("shop", "db", 1))
	o.Apply(lab.App("shop", lab.On(lab.Needing(o.Server("db", 1), 2, 100), "c1", "n0"), near))
	o.Wait("what is to be near runs", o.Running("shop", "near", 1))
	if w := o.Workload(o.ID("shop", "near", 0)); w.Node != "n1" {
		t.Errorf("it runs on %s", w.Node)
	}
	cables[1].Set(60*time.Millisecond, 0)
	violatedByTCP(t, o, o.ID("shop", "near", 0), "db")
}

// violatedByTCP waits until an instance violates its SLA by the measured round trips of its
// connections to a service on n0. Coordinates would show the same only minutes later.
func violatedByTCP(t *testing.T, o *lab.Overlay, id api.InstanceID, service string) {
	t.Helper()
	at := netip.AddrPortFrom(o.Addresses("shop", service).RoundRobin, 80).String()
	conn, err := o.Inside(id).Dial(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	took := lab.Stopwatch()
	says := regexp.MustCompile(`^latency: \d{3} ms, need 45 ms to db\.\S+; measured by \d+ connections? at \d\d:\d\d:\d\d UTC$`)
	said := ""
	lab.Within(t, 3*time.Minute, "its SLA is broken by what TCP measured", func() error {
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: db\r\n\r\n"); err != nil {
			return err
		}
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if _, err := o.First.API.OwnNodes().Routes(t.Context(), "n0"); err != nil { // the request makes the node measure now
			return err
		}
		v := o.Instance(id).Violated
		if v != said {
			said = v
			t.Logf("after %s: %s", took().Round(100*time.Millisecond), v)
		}
		if !says.MatchString(v) {
			return fmt.Errorf("the violation is %q", v)
		}
		return nil
	})
}

// learned waits until the cluster's estimates of the round trips between nodes are
// approximately right. The tolerance suffices for the decisions of the test, and allows for a
// slow machine; exact estimates take minutes.
func learned(t *testing.T, o *lab.Overlay, so func(apart func(i, j int) time.Duration) bool) {
	t.Helper()
	took := lab.Stopwatch()
	lab.Within(t, 4*time.Minute, "the cluster knows the distances", func() error {
		at := make([]api.Coordinate, len(o.Nodes))
		for i, n := range o.Nodes {
			shown, err := o.First.NodeOf(n.ID)
			if err != nil {
				return err
			}
			if shown.Coord == nil {
				return fmt.Errorf("%s has no coordinate", n.ID)
			}
			at[i] = *shown.Coord
		}
		apart := func(i, j int) time.Duration { return vivaldi.Distance(at[i], at[j]) }
		if so(apart) {
			return nil
		}
		var b strings.Builder
		for i := range at {
			for j := range i {
				fmt.Fprintf(&b, " n%d-n%d %s", j, i, apart(i, j).Round(time.Millisecond))
			}
		}
		return errors.New("it believes" + b.String())
	})
	t.Logf("the estimates are right after %s", took().Round(100*time.Millisecond))
}
