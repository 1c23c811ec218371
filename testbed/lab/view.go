package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
)

// patience is how long a lab waits for an event before it fails the test.
const patience = 2 * time.Minute

// View is the state received from the root's watches.
type View struct {
	Instances map[api.InstanceID]api.Instance
	Clusters  map[api.ClusterID]api.Cluster
}

// Of returns a service's instances in the order of their numbers, without those that are
// leaving.
func (v View) Of(s api.ServiceID) []api.Instance {
	var out []api.Instance
	for _, i := range v.Instances {
		if i.Service == s && !i.Leaving {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b api.Instance) int { return a.Number - b.Number })
	return out
}

// board holds the view and wakes goroutines that wait for a change.
type board struct {
	mu      sync.Mutex // guards the fields below
	view    View
	changed chan struct{} // closed at the next change
	seen    []api.Instance
}

func newBoard() *board {
	return &board{
		view:    View{Instances: map[api.InstanceID]api.Instance{}, Clusters: map[api.ClusterID]api.Cluster{}},
		changed: make(chan struct{}),
	}
}

func (b *board) update(fn func(*View)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn(&b.view)
	close(b.changed)
	b.changed = make(chan struct{})
}

// watch follows the root until ctx ends, also across restarts.
func (b *board) watch(ctx context.Context, c *client.Client, wg *sync.WaitGroup) {
	wg.Go(func() {
		follow(ctx, c, client.Instances, func(id string, i *api.Instance) {
			b.update(func(v *View) {
				if i == nil {
					delete(v.Instances, api.InstanceID(id))
					return
				}
				v.Instances[i.ID] = *i
				b.seen = append(b.seen, *i)
			})
		})
	})
	wg.Go(func() {
		follow(ctx, c, client.Clusters, func(id string, cl *api.Cluster) {
			b.update(func(v *View) {
				if cl == nil {
					delete(v.Clusters, api.ClusterID(id))
					return
				}
				v.Clusters[cl.ID] = *cl
			})
		})
	})
}

func follow[O any](ctx context.Context, c *client.Client, kind client.Kind, set func(id string, o *O)) {
	for ctx.Err() == nil {
		all, rev, err := client.List[O](ctx, c, string(kind), client.ListOptions{})
		if err == nil {
			for i := range all {
				set("", &all[i])
			}
			for change, werr := range client.Watch[O](ctx, c, kind, client.WatchOptions{Since: rev}) {
				if err = werr; err == nil {
					set(change.ID, change.Object)
				}
			}
		}
		if err != nil && !errors.Is(err, api.ErrGone) {
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond): // the root is down
			}
		}
	}
}

// Wait waits until ok holds for the root's view, and fails the test if it does not within a
// minute.
func (l *Lab) Wait(what string, ok func(View) bool) {
	l.t.Helper()
	l.WaitWithin(patience, what, ok)
}

// WaitWithin is Wait with another bound.
func (l *Lab) WaitWithin(d time.Duration, what string, ok func(View) bool) {
	l.t.Helper()
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	for {
		l.board.mu.Lock()
		done, changed := ok(l.board.view), l.board.changed
		l.board.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			l.t.Fatalf("not reached within %s: %s\n%s", d, what, l.Story())
		}
	}
}

// Look reads the root's present view.
func (l *Lab) Look(fn func(View)) {
	l.board.mu.Lock()
	defer l.board.mu.Unlock()
	fn(l.board.view)
}

// Instance returns an instance as last reported.
func (l *Lab) Instance(id api.InstanceID) (i api.Instance) {
	l.Look(func(v View) { i = v.Instances[id] })
	return i
}

// History returns all reported states of an instance, oldest first.
func (l *Lab) History(id api.InstanceID) []api.Instance {
	l.board.mu.Lock()
	defer l.board.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.board.seen), func(i api.Instance) bool { return i.ID != id })
}

// Running holds when the service has n instances and all of them run, on clusters that are
// connected to the root.
func (l *Lab) Running(app, service string, n int) func(View) bool {
	s := l.ServiceID(app, service)
	return func(v View) bool {
		all := v.Of(s)
		return len(all) == n && !slices.ContainsFunc(all, func(i api.Instance) bool {
			return i.State != api.Running || v.Clusters[i.Cluster].Status != api.ClusterReady
		})
	}
}

// Gone holds when nothing of the application is left.
func (l *Lab) Gone(app string) func(View) bool {
	id := l.Tenant.App(app, Namespace)
	return func(v View) bool {
		for i := range v.Instances {
			if i.Service().App() == id {
				return false
			}
		}
		return true
	}
}

// Is holds when ok holds for the instance.
func Is(id api.InstanceID, ok func(api.Instance) bool) func(View) bool {
	return func(v View) bool {
		i, found := v.Instances[id]
		return found && ok(i)
	}
}

// Nodes holds when the root knows that the cluster has n nodes that take work.
func Nodes(cluster api.ClusterID, n int) func(View) bool {
	return func(v View) bool {
		c := v.Clusters[cluster]
		return c.Status == api.ClusterReady && c.Aggregate.Nodes == n
	}
}

// Story returns the present state as text, for a failed test.
func (l *Lab) Story() string {
	var b strings.Builder
	l.board.mu.Lock()
	for _, id := range slices.Sorted(maps.Keys(l.board.view.Clusters)) {
		c := l.board.view.Clusters[id]
		fmt.Fprintf(&b, "cluster %s: %s, %d nodes, free %s, largest %s\n", id, c.Status, c.Aggregate.Nodes, c.Aggregate.Free, c.Aggregate.Largest)
	}
	for n, id := range slices.Sorted(maps.Keys(l.board.view.Instances)) {
		if n == 20 {
			fmt.Fprintf(&b, "… %d instances in all\n", len(l.board.view.Instances))
			break
		}
		i := l.board.view.Instances[id]
		fmt.Fprintf(&b, "%s: %s %s %q cluster=%s epoch=%s restarts=%d stale=%v leaving=%v\n", id, i.State, i.Reason, i.Detail, i.Cluster, i.Epoch, i.Restarts, i.Stale, i.Leaving)
	}
	l.board.mu.Unlock()
	for n, w := range l.Workloads() {
		if n == 20 {
			break
		}
		fmt.Fprintf(&b, "process %d: %s epoch %s attempt %d on %s\n", w.PID, w.Instance, w.Epoch, w.Attempt, w.Node)
	}
	return b.String()
}
