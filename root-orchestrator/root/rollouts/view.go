package rollouts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// State returns the state of a service's newest roll-out, "" if it has none, and whether instances
// of an earlier version had to be replaced.
func (m *Machine) State(id api.ServiceID) (state api.RollOutState, replaces bool) {
	if r := m.rollOuts[id]; r != nil {
		return r.State, r.Replaces
	}
	return "", false
}

// View returns the newest roll-out of a service as the API shows it, and whether there is one.
func (m *Machine) View(s Service) (api.RollOut, bool) {
	r := m.rollOuts[s.ID]
	if r == nil {
		return api.RollOut{}, false
	}
	c := m.count(r, s)
	v := api.RollOut{
		Service: s.ID, State: r.State, Detail: r.Detail, Version: r.Version, Healthy: r.Healthy, Failed: r.Failed,
		Replicas: s.Replicas, Waiting: r.Waiting, Extra: m.extra(r, s), Updated: c.updated, Ready: c.ready, Succeeded: c.succeeded,
		Policy: s.Policy.String(), Began: r.Began, Ended: r.Ended,
	}
	switch r.State {
	case api.RollOutProgressing, api.RollOutRollingBack:
		v.Detail = m.waitsFor(r, s, c)
	case api.RollOutCanary:
		v.Detail = "waits for treeline rollout promote; treeline rollout undo returns to the version before"
	}
	return v, true
}

// waitsFor describes what a roll-out waits for.
func (m *Machine) waitsFor(r *rollOut, s Service, c counts) string {
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if r.Failed != 0 {
		say("returns from version %d, which failed", r.Failed)
	}
	if r.NoRoom {
		say("no cluster has room for an additional instance, so instances are replaced in place, after their image was pulled")
	}
	held, misfit := 0, 0
	for _, i := range s.Instances {
		at, ready := r.ready[i.ID]
		switch {
		case i.Version != s.Version && i.Held:
			held++
		case i.Version != s.Version && r.NoRoom && !i.InPlace:
			misfit++
		case i.Version != s.Version || i.Dormant || m.healthy(r, s, i):
		case ready:
			say("#%d is ready and healthy in %s", i.ID.Number(), at.at.Add(r.minHealthy(s)).Sub(m.now).Round(time.Second))
		default:
			say("#%d %s", i.ID.Number(), i.Doing)
		}
		if len(parts) > 4 {
			break
		}
	}
	if held > 0 {
		say("%d instances are in clusters that do not report", held)
	}
	if misfit > 0 {
		say("%d instances cannot be replaced in place, because the new version needs another or a larger place: free resources for one more instance", misfit)
	}
	if floor := r.floor(s, c); r.Surge > 0 && c.oldReady > 0 && c.open == 0 && c.ready <= floor {
		say("%d of %d instances are ready, too few to replace one of them", c.ready, s.Replicas)
	}
	return strings.Join(parts, "; ")
}

// History returns the versions of a service, the oldest first.
func (m *Machine) History(id api.ServiceID) (out []api.RollOutVersion) {
	if r := m.rollOuts[id]; r != nil {
		for _, v := range r.History {
			out = append(out, v.RollOutVersion)
		}
	}
	return out
}

// notFound returns the error for a service without roll-outs.
func notFound(id api.ServiceID) error { return fmt.Errorf("service %s: %w", id, api.ErrNotFound) }

// Pause stops a roll-out until Resume. Instances that are being replaced continue. Errors:
// ErrNotFound, ErrConflict (it is over).
func (m *Machine) Pause(id api.ServiceID, by string) error {
	r := m.rollOuts[id]
	switch {
	case r == nil:
		return notFound(id)
	case r.over():
		return fmt.Errorf("pause the roll-out of %s: it is %s: %w", id, r.State, api.ErrConflict)
	case r.State == api.RollOutRollingBack:
		return fmt.Errorf("pause the roll-out of %s: it returns to version %d, because version %d failed: %w", id, r.Version, r.Failed, api.ErrConflict)
	}
	r.State, r.Detail = api.RollOutPaused, "paused by "+by+"; treeline rollout resume continues"
	m.timers.Clear(id)
	m.changed.Add(id)
	return nil
}

// Resume continues a roll-out that is paused or has failed, with a new deadline. Errors:
// ErrNotFound, ErrConflict.
func (m *Machine) Resume(id api.ServiceID) error {
	r := m.rollOuts[id]
	switch {
	case r == nil:
		return notFound(id)
	case r.State != api.RollOutPaused && r.State != api.RollOutFailed:
		return fmt.Errorf("resume the roll-out of %s: it is %s, not paused or failed: %w", id, r.State, api.ErrConflict)
	}
	if v := r.version(r.Version); v != nil {
		v.Result, v.Detail, v.Ended = api.RollOutProgressing, "", time.Time{}
	}
	r.Ended, r.best, r.NoRoom, r.Surge = time.Time{}, 0, false, -1
	m.proceed(r)
	return nil
}

// Promote continues a roll-out beyond its canaries. Errors: ErrNotFound, ErrConflict (it does not
// wait for that).
func (m *Machine) Promote(id api.ServiceID) error {
	r := m.rollOuts[id]
	switch {
	case r == nil:
		return notFound(id)
	case r.State != api.RollOutCanary:
		return fmt.Errorf("promote the canaries of %s: its roll-out is %s; canaries can be promoted once they are healthy (state canary): %w", id, r.State, api.ErrConflict)
	}
	r.Promoted = true
	m.proceed(r)
	return nil
}

// Earlier returns the version to which an undo returns: to, or, if to is 0, the last healthy one
// other than the present one. Errors: ErrNotFound, ErrConflict (it is the present one).
func (m *Machine) Earlier(id api.ServiceID, to api.Revision) (Version, error) {
	r := m.rollOuts[id]
	if r == nil {
		return Version{}, notFound(id)
	}
	if to == 0 {
		if to = r.Healthy; to == r.Version || to == 0 {
			to = 0
			for _, v := range slices.Backward(r.History) {
				if v.Version != r.Version && v.Result == api.RollOutHealthy {
					to = v.Version
					break
				}
			}
		}
		if to == 0 {
			return Version{}, fmt.Errorf("undo the roll-out of %s: no earlier version was healthy; choose one of treeline rollout history: %w", id, api.ErrConflict)
		}
	}
	switch v := r.version(to); {
	case to == r.Version:
		return Version{}, fmt.Errorf("undo the roll-out of %s: it has version %d already: %w", id, to, api.ErrConflict)
	case v != nil:
		return *v, nil
	}
	return Version{}, fmt.Errorf("version %d of %s; treeline rollout history lists the versions: %w", to, id, api.ErrNotFound)
}
