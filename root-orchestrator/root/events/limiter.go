package events

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// Events per period that the reports of a cluster may write, which is also how many it
// may write at once. A node that dies takes each of its instances through fewer states.
const (
	period      = time.Minute
	perInstance = 30
	perCluster  = 100
	perHosted   = 8 // more per cluster and per tenant, for each instance there
)

// Limiter limits how many events the reports of a cluster write: of each instance, of
// each topmost tenant's instances on the cluster, and in all. It counts the events
// above a limit, and returns one that sums them up as soon as the limit allows it.
type Limiter struct {
	capacity  int // of the log; no limit is higher
	clusters  map[api.ClusterID]*cluster
	instances map[api.InstanceID]*limit // those added; nil: has used nothing
	timers    step.Timers[key]
}

// key names a limit: an instance's, a tenant's on a cluster, or a cluster's.
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

// limit is the state of the generic cell rate algorithm of ITU-T I.371, and the
// events that it rejected.
type limit struct {
	used    time.Time // when all that was allowed so far has been regained
	cluster api.ClusterID
	last    api.Event // of those rejected
	omitted int       // how many were rejected
}

// next returns when one more event is allowed, of n per period.
func (l *limit) next(n int) time.Time { return l.used.Add(period/time.Duration(n) - period) }

func (l *limit) take(now time.Time, n int) {
	if l.used.Before(now) {
		l.used = now
	}
	l.used = l.used.Add(period / time.Duration(n))
}

// recent is the largest value that a count had in the last two periods. Instances
// that have left still cause events.
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
	tenants map[api.Tenant]*tenant // the topmost ones that have or recently had instances there
	notices notices
}

type tenant struct {
	limit
	instances int
	hosted    recent
}

// NewLimiter returns a limiter for a log of that capacity.
func NewLimiter(capacity int) *Limiter {
	return &Limiter{capacity: capacity, clusters: map[api.ClusterID]*cluster{}, instances: map[api.InstanceID]*limit{}}
}

// AddCluster starts to limit the events of a cluster. Those of other clusters are not
// limited.
func (l *Limiter) AddCluster(id api.ClusterID) {
	l.clusters[id] = &cluster{tenants: map[api.Tenant]*tenant{}}
}

// RemoveCluster removes the state of a cluster.
func (l *Limiter) RemoveCluster(id api.ClusterID) { delete(l.clusters, id) }

// AddInstance starts to limit the events of an instance.
func (l *Limiter) AddInstance(id api.InstanceID) { l.instances[id] = nil }

// RemoveInstance removes the state of an instance.
func (l *Limiter) RemoveInstance(id api.InstanceID) { delete(l.instances, id) }

// Hosted sets how many instances a cluster has.
func (l *Limiter) Hosted(now time.Time, id api.ClusterID, instances int) {
	if cl := l.clusters[id]; cl != nil {
		cl.hosted.observe(now, instances)
	}
}

// Assigned counts instances of a tenant that a cluster gets (n above 0) or loses.
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

// Allow reports whether an event that a report of cluster by causes may be written
// now. If not, the limiter counts the event. Events about other clusters are allowed.
func (l *Limiter) Allow(now time.Time, by api.ClusterID, e api.Event) bool {
	about := e.Cluster == by || e.Cluster == "" && e.Instance != ""
	return !about || l.allow(now, by, e, 1)
}

// allow is Allow for an event that stands for n events.
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

// limit returns the limit of a key, nil if it has none, and how many events it allows
// per period. The limits of all tenants on a cluster add up to the cluster's.
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

// Next returns when Due has something to do, or the zero time.
func (l *Limiter) Next() time.Time { return l.timers.Next() }

// Due returns the events that sum up what was omitted and may be written now.
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
