package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// coldLimit bounds the median of what a cold start takes beyond containerd's create and start, in ms.
const coldLimit = 60

// coldStarts measures the time from a request to a service of which no instance runs, sent by a container
// on another node, until the first byte of the answer. Samples alternate with samples of containerd alone.
func coldStarts(r *run) error {
	return inLab(r, func(l *lab.Lab) error {
		hosts := &hostRig{rig{log: r.log}}
		defer hosts.close()
		w := newRouteWorld(l, netlab.New(hosts))
		near := w.cluster("near")
		n := max(r.n, 3)
		server := w.nodeWith(near, "server", float64(n+4))
		l.Wait("the server's node takes work", lab.Nodes("near", 1))
		floor, err := newFloor(l, server, lab.Needing(idler(l, 1), 1, 16))
		if err != nil {
			return err
		}
		defer floor.close()
		w.node(near, "client")
		l.Wait("the nodes take work", lab.Nodes("near", 2))
		services := []api.Microservice{lab.On(l.Container("client", 1), "near", "client")}
		for i := range n + 1 {
			services = append(services, lab.On(sleeper(l, i), "near", "server"))
		}
		l.Apply(lab.App("cold", services...))
		l.Wait("the client runs", l.Running("cold", "client", 1))
		for i := range n + 1 {
			l.Wait("the services sleep", lab.Is(l.ID("cold", sleeperName(i), 0), func(i api.Instance) bool { return i.State == api.Dormant }))
		}
		in := l.Inside(l.ID("cold", "client", 0))
		var bare, cold, over series
		for i := range n + 1 {
			if err := sleep(r.ctx, settle); err != nil {
				return err
			}
			watch := watch(l.Dir)
			alone, err := floor.once(i, true)
			if err != nil {
				return err
			}
			if err := sleep(r.ctx, settle); err != nil {
				return err
			}
			took, err := firstByte(r.ctx, in, netip.AddrPortFrom(l.Addresses("cold", sleeperName(i)).RoundRobin, 80).String())
			if err != nil {
				return fmt.Errorf("request to %s: %w", sleeperName(i), err)
			}
			if i == 0 {
				continue // finds the path between the nodes
			}
			bad := watch.disturbed()
			bare.add(ms(alone["task started"]), bad)
			cold.add(ms(took), bad)
			over.add(ms(took-alone["task started"]), bad)
		}
		base := bare.record("cold.floor", "ms")
		r.emit(base.noting("containerd alone: snapshot, container, task, start"))
		r.emit(cold.record("cold.first-byte", "ms").over(base.Name, base.Median).
			noting("from the request, of a container on another node, until the first byte; the image is on the node"))
		r.emit(over.record("cold.overhead", "ms").atMost(coldLimit).over(base.Name, base.Median).
			noting("each sample is a cold start less the floor's sample taken right before it"))
		return nil
	})
}

func sleeperName(i int) string { return fmt.Sprintf("web%d", i) }

// sleeper returns a service that runs from its first packet on.
func sleeper(l *lab.Lab, i int) api.Microservice {
	m, zero := l.Container(sleeperName(i), 1), 0
	m.Network, m.VCPUs, m.Memory = "", 1, 16 // less would throttle its start
	m.Replicas, m.Scale = nil, &api.Scale{Min: &zero, Max: 1, IdleTime: 3600}
	m.Cmd, m.Environment = []string{"/app", "serve"}, []string{"PORT=80"}
	return m
}

// firstByte returns the time from before the connection until the first byte of the answer.
func firstByte(ctx context.Context, in *lab.Inside, at string) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	began := time.Now()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { took = time.Since(began) }})
	c := http.Client{Transport: &http.Transport{DialContext: in.Dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/", http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16))
	return took, err
}
