package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/jsonsize"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	usageAtOnce = 16              // nodes that one request asks at the same time
	usageTime   = 4 * time.Second // for the answer of one node, which measures for a second
	usageAll    = 8 * time.Second // for all nodes of a request
	usageLasts  = time.Second     // how long a node's answer serves those who ask later

	// Bytes of a node's answer: a part of its own, and one for each instance that it has.
	usageBase, usageEach = 16 << 10, 1 << 10
)

var usagePlaces = fairshare.Declare(fairshare.Bound{
	Resource: "requests for the usage of nodes and instances, under way", Total: 64, Share: []int{16, 8}, Per: "tenant, then person",
	Beyond: "429. Each node is asked once a second at most, whoever asks; a request asks 16 nodes at once and names what it could not measure in 8 s or beyond 1000 rows",
	Attack: "TestMeasurementsOfOneTenantLeaveRoomForOthers",
})

// measurements have the answers of nodes that are under way or have just come.
type measurements struct {
	mu    sync.Mutex // guards nodes
	nodes map[api.NodeID]*measurement
}

type measurement struct {
	done chan struct{} // closed when the fields below are set
	at   time.Time
	got  wire.NodeSample
	err  error
}

type usageIn struct {
	Tenant api.Tenant `query:"tenant" maxLength:"256" doc:"Only instances of this tenant and those below it."`
	Under  string     `query:"under" maxLength:"512" doc:"Only instances of this application or service, or this instance, by its id."`
}

type nodeUsageIn struct {
	Node string `query:"node" maxLength:"63" doc:"Only this node."`
}

func (a *API) registerUsage() {
	tag := rest.Tag("usage")
	about := "Each node measures when it is asked, for a second unless somebody asked lately. What does not answer in time is in missing."
	answer(a, tag.Get("/v1/usage/instances", "Measure what running instances use", 429).Named("instanceUsage").About(about), "", a.instanceUsage)
	answer(a, tag.Get("/v1/usage/nodes", "Measure what nodes use", 404, 429).Named("nodeUsage").About(about), rights.NodesRead, a.nodeUsage)
}

// instanceUsage measures the running instances that p may see.
func (a *API) instanceUsage(ctx context.Context, p rights.Principal, in *usageIn) (out api.Usages[api.InstanceUsage], err error) {
	out.Items = []api.InstanceUsage{}
	if p.User == "" {
		return out, fmt.Errorf("measure instances: sign in first: %w", api.ErrUnauthenticated)
	}
	all, err := read(ctx, a, a.opt.Core.Instances)
	if err != nil {
		return out, err
	}
	cluster, named := a.opt.Info().ID, a.allowed(p, rights.NodesRead) == nil
	on := map[api.NodeID]int{}
	left := 0
	all = slices.DeleteFunc(all, func(i api.Instance) bool {
		if i.Node != "" {
			on[i.Node]++
		}
		if i.Node == "" || i.State != api.Running || a.sees(p, i.ID) != nil || !i.ID.Tenant().Within(in.Tenant) && in.Tenant != "" || !api.Under(string(i.ID), in.Under) {
			return true
		}
		left++
		return left > api.MaxUsages
	})
	var nodes []api.NodeID
	for _, i := range all {
		nodes = append(nodes, i.Node)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	samples, err := a.measure(ctx, p, nodes, on)
	if err != nil {
		return out, err
	}
	for _, i := range all {
		node := i.Node
		if !named {
			node = ""
		}
		s := samples[i.Node]
		u, known := s.of(wire.Key{Instance: i.ID, Epoch: i.Epoch})
		if s.err == nil && known {
			out.Items = append(out.Items, api.InstanceUsage{Instance: i.ID, Epoch: i.Epoch, Cluster: cluster, Node: node, Usage: u, At: s.at})
			continue
		}
		if i.Leaving && s.err == nil {
			continue // its node may have stopped it already
		}
		reason := "its node has not measured it"
		if s.err != nil {
			reason = "its node did not answer"
			if named {
				reason = s.err.Error()
			}
		}
		out.Missing = append(out.Missing, api.Unmeasured{Cluster: cluster, Node: node, Instance: i.ID, Reason: reason})
	}
	if more := left - len(all); more > 0 {
		out.Missing = append(out.Missing, api.Unmeasured{
			Cluster: cluster, Reason: fmt.Sprintf("%d more instances are left out, %d is the most at once: ask for an application or service", more, api.MaxUsages),
		})
	}
	return out, nil
}

func (a *API) nodeUsage(ctx context.Context, p rights.Principal, in *nodeUsageIn) (out api.Usages[api.NodeUsage], err error) {
	out.Items = []api.NodeUsage{}
	var nodes []api.Node
	on := map[api.NodeID]int{}
	var missing error
	err = a.opt.Owner.Read(ctx, func() {
		nodes = a.opt.Core.Nodes()
		if in.Node != "" {
			n, ok := a.opt.Core.Node(api.NodeID(in.Node))
			if nodes = []api.Node{n}; !ok {
				missing = a.opt.Core.NoSuchNode(api.NodeID(in.Node))
			}
		}
		for _, n := range nodes {
			on[n.ID] = n.Instances
		}
	})
	if err = cmp.Or(err, missing); err != nil {
		return out, err
	}
	cluster := a.opt.Info().ID
	if more := len(nodes) - api.MaxUsages; more > 0 {
		nodes = nodes[:api.MaxUsages]
		out.Missing = append(out.Missing, api.Unmeasured{
			Cluster: cluster, Reason: fmt.Sprintf("%d more nodes are left out, %d is the most at once: ask for one node", more, api.MaxUsages),
		})
	}
	ids := make([]api.NodeID, len(nodes))
	for i, n := range nodes {
		ids[i] = n.ID
	}
	samples, err := a.measure(ctx, p, ids, on)
	if err != nil {
		return out, err
	}
	for _, n := range nodes {
		s := samples[n.ID]
		if s.err != nil {
			out.Missing = append(out.Missing, api.Unmeasured{Cluster: cluster, Node: n.ID, Reason: s.err.Error()})
			continue
		}
		u := api.NodeUsage{
			Node: n.ID, Cluster: cluster, Machine: s.got.Machine, Running: len(s.got.Workloads), Capacity: n.Capacity, Allocated: n.Allocated, At: s.at,
		}
		for _, w := range s.got.Workloads {
			add(&u.Instances.MilliCPU, w.MilliCPU)
			add(&u.Instances.Memory, w.Memory)
			add(&u.Instances.In, w.In)
			add(&u.Instances.Out, w.Out)
		}
		u.Instances = u.Instances.Bounded()
		out.Items = append(out.Items, u)
	}
	return out, nil
}

// add adds a value unless it is unknown.
func add(sum *int64, v int64) { *sum += max(0, v) }

func (m measurement) of(k wire.Key) (api.Usage, bool) {
	i, ok := slices.BinarySearchFunc(m.got.Workloads, k, func(w wire.WorkloadSample, k wire.Key) int { return compareKeys(w.Key, k) })
	if !ok {
		return api.UnknownUsage, false
	}
	return m.got.Workloads[i].Usage, true
}

func compareKeys(a, b wire.Key) int {
	return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Epoch, b.Epoch))
}

// measure asks nodes, which have on instances each. Those that do not answer have an error.
func (a *API) measure(ctx context.Context, p rights.Principal, nodes []api.NodeID, on map[api.NodeID]int) (map[api.NodeID]measurement, error) {
	place, err := a.usages.Take(time.Now(), apishare.Path(p), nil)
	if err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	defer place.Release()
	ctx, cancel := context.WithTimeout(ctx, usageAll)
	defer cancel()
	out := make(map[api.NodeID]measurement, len(nodes))
	var mu sync.Mutex // guards out
	var wg sync.WaitGroup
	slots := make(chan struct{}, usageAtOnce)
	for _, n := range nodes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			m := a.measureNode(ctx, n, on[n])
			mu.Lock()
			defer mu.Unlock()
			out[n] = m
		})
	}
	wg.Wait()
	return out, nil
}

// measureNode returns a node's answer, which all share who ask at the same time.
func (a *API) measureNode(ctx context.Context, n api.NodeID, instances int) measurement {
	if ctx.Err() != nil {
		return measurement{err: fmt.Errorf("it was not asked, because others took %s: %w", usageAll, api.ErrTimeout)}
	}
	m := &a.measured
	m.mu.Lock()
	got := m.nodes[n]
	mine := got == nil
	if mine {
		got = &measurement{done: make(chan struct{})}
		m.nodes[n] = got
	}
	m.mu.Unlock()
	if mine {
		// The others get the answer even if this request ends.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), usageTime)
		got.got, got.err = a.askUsage(ctx, n, instances)
		cancel()
		got.at = time.Now()
		close(got.done)
		time.AfterFunc(usageLasts, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.nodes, n)
		})
	}
	select {
	case <-got.done:
		return *got
	case <-ctx.Done():
		return measurement{err: fmt.Errorf("it did not answer within %s: %w", usageAll, api.ErrTimeout)}
	}
}

// askUsage asks a node what it uses. The answer has the placements of instances that the cluster knows on
// it at most, each once, sorted.
func (a *API) askUsage(ctx context.Context, n api.NodeID, instances int) (s wire.NodeSample, err error) {
	from, err := a.opt.Nodes.Stream(ctx, n, wire.StreamRequest{Kind: wire.StreamUsage, For: onBehalf(ctx)})
	if err != nil {
		if errors.Is(err, api.ErrInvalid) {
			return s, fmt.Errorf("its release does not measure usage; update it: %w", api.ErrUnavailable)
		}
		return s, err
	}
	defer from.Close()
	defer context.AfterFunc(ctx, func() { _ = from.Close() })()
	limit := jsonsize.Limit{Bytes: usageBase + usageEach*int64(instances), Objects: 16 + 4*instances}
	text, err := limit.Read(from)
	if ctx.Err() != nil {
		return s, fmt.Errorf("it did not answer within %s: %w", usageTime, api.ErrTimeout)
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil { // do not wrap err: with ErrTooLarge, the answer is too large, not the request
		return wire.NodeSample{}, fmt.Errorf("read its answer: %s: %w", err.Error(), api.ErrUnavailable)
	}
	s, wrong, ok := bounds.Apply(s)
	if !ok {
		return s, fmt.Errorf("read its answer: %s: %w", wrong, api.ErrUnavailable)
	}
	if wrong.Total > 0 {
		a.opt.Log.Warn("usage of a node refused in part", "node", n, "values", wrong.String())
	}
	here := map[wire.Key]bool{}
	err = a.opt.Owner.Read(ctx, func() {
		for _, w := range s.Workloads {
			if i, ok := a.opt.Core.Instance(w.Instance); ok && i.Node == n && i.Epoch == w.Epoch {
				here[w.Key] = true
			}
		}
	})
	s.Workloads = slices.DeleteFunc(s.Workloads, func(w wire.WorkloadSample) bool {
		ok := here[w.Key]
		delete(here, w.Key)
		return !ok
	})
	slices.SortFunc(s.Workloads, func(a, b wire.WorkloadSample) int { return compareKeys(a.Key, b.Key) })
	return s, err
}
