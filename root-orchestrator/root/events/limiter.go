// Package events limits how many events the reports of one cluster write to the root's event log. It is
// a sub-machine of the root's core.
package events

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// Limits are events per period; a burst may use a whole period's events at once. perInstance is
// above the number of state changes of an instance whose node dies.
const (
	period      = time.Minute
	perInstance = 30
	perCluster  = 100
	perHosted   = 8 // added to the limits of cluster and tenant for each instance there
)

// Limiter limits the events that a cluster's reports cause: per instance, per topmost tenant on the
// cluster, and per cluster. It counts the events above a limit and returns one event that
// summarizes them when the limit allows it. It is not safe for concurrent use.
type Limiter struct {
	capacity  int // of the log; the maximum of each limit
	clusters  map[api.ClusterID]*cluster
	instances map[api.InstanceID]*limit // those added; nil value: no event yet
	timers    step.Timers[key]
}

// key identifies a limit: of an instance, of a tenant on a cluster, or of a cluster.
type key struct {
	instance api.InstanceID
	cluster  api.ClusterID
	tenant   api.Tenant
	kind     kind
}

type kind uint8

const (
	ofInstance kind = iota
	ofTenant
	ofCluster
)

// limit is the state of the generic cell rate algorithm (ITU-T I.371), and the events that it
// rejected.
type limit struct {
	used    time.Time // when the full burst is available again
	cluster api.ClusterID
	last    api.Event // the last event rejected
	omitted int       // number of rejected events
}

// next returns when one more event is allowed at n events per period.
func (l *limit) next(n int) time.Time { return l.used.Add(period/time.Duration(n) - period) }

func (l *limit) take(now time.Time, n int) {
	if l.used.Before(now) {
		l.used = now
	}
	l.used = l.used.Add(period / time.Duration(n))
}

// recent is the largest value of a count in the last two periods, because instances that have left
// still cause events.
type recent struct {
	largest int
	at      time.Time
}

func (r *recent) observe(now time.Time, n int) {
	if n >= r.largest || r.over(now) {
		r.largest, r.at = n, now
	}
}

func (r *recent) over(now time.Time) bool { return now.Sub(r.at) > 2*period }

type cluster struct {
	limit
	hosted  recent
	tenants map[api.Tenant]*tenant // topmost tenants that have or recently had instances there
	notices notices
}

type tenant struct {
	limit
	instances int
	hosted    recent
}

func NewLimiter(capacity int) *Limiter {
	return &Limiter{capacity: capacity, clusters: map[api.ClusterID]*cluster{}, instances: map[api.InstanceID]*limit{}}
}

// AddCluster begins to limit the events of a cluster. Clusters that were not added are not limited.
func (l *Limiter) AddCluster(id api.ClusterID) {
	l.clusters[id] = &cluster{tenants: map[api.Tenant]*tenant{}}
}

func (l *Limiter) RemoveCluster(id api.ClusterID) { delete(l.clusters, id) }

func (l *Limiter) AddInstance(id api.InstanceID) { l.instances[id] = nil }

func (l *Limiter) RemoveInstance(id api.InstanceID) { delete(l.instances, id) }

// Hosted sets how many instances a cluster has.
func (l *Limiter) Hosted(now time.Time, id api.ClusterID, instances int) {
	if cl := l.clusters[id]; cl != nil {
		cl.hosted.observe(now, instances)
	}
}

// Assigned adds n to the number of a tenant's instances on a cluster; n may be negative.
func (l *Limiter) Assigned(now time.Time, id api.ClusterID, of api.Tenant, n int) {
	cl := l.clusters[id]
	if cl == nil {
		return
	}
	t := cl.tenants[of.Top()]
	if t == nil {
		for id, other := range cl.tenants {
			if other.instances <= 0 && other.omitted == 0 && other.hosted.over(now) {
				delete(cl.tenants, id)
			}
		}
		t = &tenant{}
		cl.tenants[of.Top()] = t
	}
	t.hosted.observe(now, t.instances)
	t.instances += n
	t.hosted.observe(now, t.instances)
}

// Allow reports whether an event caused by a report of the cluster by may be written now. If not,
// it counts the event. Events about other clusters are always allowed.
func (l *Limiter) Allow(now time.Time, by api.ClusterID, e api.Event) bool {
	about := e.Cluster == by || e.Cluster == "" && e.Instance != ""
	return !about || l.allow(now, by, e, 1)
}

// allow is Allow for an event that summarizes n events.
func (l *Limiter) allow(now time.Time, by api.ClusterID, e api.Event, n int) bool {
	if l.clusters[by] == nil {
		return true
	}
	keys := [...]key{{kind: ofInstance, instance: e.Instance}, {kind: ofTenant, cluster: by, tenant: e.Tenant.Top()}, {kind: ofCluster, cluster: by}}
	applies := keys[:]
	if e.Instance == "" {
		applies = keys[2:]
	}
	for _, k := range applies {
		x, rate := l.limit(now, k)
		if x == nil {
			continue
		}
		if at := x.next(rate); x.omitted > 0 || at.After(now) {
			x.cluster, x.last, x.omitted = by, e, x.omitted+n
			l.timers.Set(k, at)
			return false
		}
	}
	if x, known := l.instances[e.Instance]; known && x == nil {
		l.instances[e.Instance] = &limit{}
	}
	for _, k := range applies {
		if x, rate := l.limit(now, k); x != nil {
			x.take(now, rate)
		}
	}
	return true
}

// limit returns the limit of a key, nil if there is none, and its number of events per period. The
// limits of all tenants on a cluster add up to the cluster's limit.
func (l *Limiter) limit(now time.Time, k key) (*limit, int) {
	cl := l.clusters[k.cluster]
	switch {
	case k.kind == ofInstance:
		return l.instances[k.instance], perInstance
	case cl == nil:
	case k.kind == ofCluster:
		return &cl.limit, l.bounded(perCluster + perHosted*cl.hosted.largest)
	case cl.tenants[k.tenant] != nil:
		t := cl.tenants[k.tenant]
		t.hosted.observe(now, t.instances)
		return &t.limit, l.bounded(perCluster/len(cl.tenants) + perHosted*t.hosted.largest)
	}
	return nil, 0
}

func (l *Limiter) bounded(rate int) int { return max(1, min(rate, l.capacity)) }

// Next returns when Due has to be called next, or the zero time.
func (l *Limiter) Next() time.Time { return l.timers.Next() }

// Due returns the summaries of omitted events that may be written now.
func (l *Limiter) Due(now time.Time) (out []api.Event) {
	for {
		k, ok := l.timers.Pop(now)
		if !ok {
			return out
		}
		if e, ok := l.summary(now, k); ok {
			out = append(out, e)
		}
	}
}

func (l *Limiter) summary(now time.Time, k key) (api.Event, bool) {
	x, rate := l.limit(now, k)
	if x == nil || x.omitted == 0 {
		return api.Event{}, false
	}
	if at := x.next(rate); at.After(now) { // the rate has fallen
		l.timers.Set(k, at)
		return api.Event{}, false
	}
	e, n := x.last, x.omitted
	x.last, x.omitted = api.Event{}, 0
	switch {
	case k.kind == ofCluster:
		x.take(now, rate)
		return api.Event{
			Kind: "cluster", Object: string(k.cluster), Cluster: k.cluster,
			Detail: fmt.Sprintf("%d events were left out, the last of %s %s: the cluster causes more than %d a minute", n, e.Kind, e.Object, rate),
		}, true
	case n == 1:
	case k.kind == ofTenant:
		e.Detail = fmt.Sprintf("%s … and %d more events of instances of tenant %s on cluster %s", e.Detail, n-1, k.tenant, k.cluster)
	default:
		e.Detail = fmt.Sprintf("%s … and %d more like this", e.Detail, n-1)
	}
	return e, l.allow(now, x.cluster, e, n)
}
