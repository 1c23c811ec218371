package rollouts

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
)

const web = api.ServiceID("acme/shop.prod.web.v1")

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// fleet carries out the decisions of a Machine about one service, and observes that at most as many
// instances are missing as the policy allows.
type fleet struct {
	t      rapid.TB
	m      *Machine
	s      Service
	specs  map[api.Revision]*api.Microservice
	now    time.Time
	start  map[api.Revision]time.Duration // how long instances of a version need to get ready; below 0: for ever
	broken map[api.Revision]bool          // versions without an image
	room   int                            // how many instances have a place
	epochs api.Epoch
	due    map[api.InstanceID]time.Time // when an instance gets ready
	events []string
	lowest int // the fewest instances that were ready

	renumber api.Revision // the number that the root gives a version that returns; 0: the one that it had
}

func newFleet(t rapid.TB, replicas int, u api.Update) *fleet {
	f := &fleet{
		t: t, now: epoch, specs: map[api.Revision]*api.Microservice{}, start: map[api.Revision]time.Duration{}, broken: map[api.Revision]bool{},
		due: map[api.InstanceID]time.Time{}, room: 1000, lowest: 1000,
	}
	f.m = New(func(_ string, was, is *api.Microservice) []api.FieldChange {
		if was.Code == is.Code {
			return nil
		}
		return []api.FieldChange{{Path: "code", Old: was.Code, New: is.Code}}
	})
	f.s = Service{ID: web, Replicas: replicas}
	f.apply(1, api.Microservice{Name: "web", Namespace: "v1", Code: "v1", Update: &u})
	f.until(api.RollOutHealthy)
	f.lowest = 1000
	return f
}

// apply sets the version that the service should have.
func (f *fleet) apply(v api.Revision, spec api.Microservice) {
	f.specs[v] = &spec
	f.s.Version, f.s.Spec, f.s.Policy = v, &spec, spec.UpdatePolicy(f.s.Replicas)
}

// next applies the present spec as another version.
func (f *fleet) next(v api.Revision) {
	spec := *f.s.Spec
	spec.Code = fmt.Sprintf("v%d", v)
	f.apply(v, spec)
}

func (f *fleet) at(n int) *Instance {
	for i := range f.s.Instances {
		if f.s.Instances[i].ID == web.Instance(n) {
			return &f.s.Instances[i]
		}
	}
	return nil
}

func (f *fleet) begin(i *Instance) {
	f.epochs++
	placed := 0
	for k := range f.s.Instances {
		if o := &f.s.Instances[k]; o != i && o.Placed {
			placed++
		}
	}
	i.Version, i.Epoch, i.Ready, i.Running, i.Dormant, i.Broken, i.Doing = f.s.Version, f.epochs, false, false, false, false, "is starting"
	i.Placed, i.InPlace = placed < f.room, true
	delete(f.due, i.ID)
	switch wait := f.start[i.Version]; {
	case !i.Placed:
	case f.broken[i.Version]:
		i.Broken, i.Doing = true, "is failed (image_not_found)"
	case wait >= 0:
		f.due[i.ID] = f.now.Add(cmp.Or(wait, time.Second))
	}
}

// step lets a second pass and carries out what the machine decides.
func (f *fleet) step() {
	f.now = f.now.Add(time.Second)
	f.m.Begin(f.now, f.now)
	for k := range f.s.Instances {
		i := &f.s.Instances[k]
		if at, ok := f.due[i.ID]; ok && !f.now.Before(at) {
			i.Running, i.Ready, i.Doing = true, true, "is running"
		}
	}
	d := f.m.Decide(f.s)
	for _, e := range d.Events {
		f.events = append(f.events, e.Detail)
	}
	f.resize(f.s.Replicas + d.Extra)
	for _, id := range d.Replace {
		if i := f.at(id.Number()); i != nil {
			f.begin(i)
		}
	}
	if d.RollBack != nil {
		f.apply(cmp.Or(f.renumber, d.RollBack.Version), *d.RollBack.Spec)
	}
	f.lowest = min(f.lowest, f.ready())
}

func (f *fleet) resize(want int) {
	worth := func(i Instance) int {
		switch {
		case i.Ready, i.Dormant:
			return 2
		case i.Running:
			return 1
		}
		return 0
	}
	if over := len(f.s.Instances) - want; over > 0 {
		all := slices.Clone(f.s.Instances)
		slices.SortFunc(all, func(a, b Instance) int { return cmp.Or(worth(a)-worth(b), b.ID.Number()-a.ID.Number()) })
		for _, gone := range all[:over] {
			f.s.Instances = slices.DeleteFunc(f.s.Instances, func(i Instance) bool { return i.ID == gone.ID })
			delete(f.due, gone.ID)
		}
	}
	for n := 0; len(f.s.Instances) < want; n++ {
		if f.at(n) == nil {
			f.s.Instances = append(f.s.Instances, Instance{ID: web.Instance(n)})
			f.begin(&f.s.Instances[len(f.s.Instances)-1])
		}
	}
	slices.SortFunc(f.s.Instances, func(a, b Instance) int { return a.ID.Number() - b.ID.Number() })
}

func (f *fleet) ready() (n int) {
	for _, i := range f.s.Instances {
		if i.Ready {
			n++
		}
	}
	return n
}

func (f *fleet) state() api.RollOutState {
	s, _ := f.m.State(web)
	return s
}

// until steps until the newest version's roll-out is in a state.
func (f *fleet) until(want api.RollOutState) {
	f.t.Helper()
	for range 5000 {
		f.step()
		if f.state() == want && f.m.Record(web).Version == f.s.Version {
			return
		}
	}
	v, _ := f.m.View(f.s)
	f.t.Fatalf("the roll-out is %s, want %s", v.Standing(), want)
}

func (f *fleet) have(v api.Revision) (n int) {
	for _, i := range f.s.Instances {
		if i.Version == v {
			n++
		}
	}
	return n
}

func (f *fleet) want(versions map[api.Revision]int) {
	f.t.Helper()
	n := 0
	for v, want := range versions {
		n += want
		if f.have(v) != want {
			f.t.Errorf("%d instances have version %d, want %d", f.have(v), v, want)
		}
	}
	if len(f.s.Instances) != n {
		f.t.Errorf("there are %d instances, want %d", len(f.s.Instances), n)
	}
}

func ptr[T any](v T) *T { return &v }

func TestRollOuts(t *testing.T) {
	quick := api.Update{MinHealthyTime: ptr(2), Deadline: 30}
	with := func(change func(*api.Update)) api.Update {
		u := quick
		change(&u)
		return u
	}
	for name, tt := range map[string]struct {
		replicas int
		update   api.Update
		spec     func(*api.Microservice)
		world    func(*fleet)
		ends     api.RollOutState
		has      map[api.Revision]int
		lowest   int
		says     string // an event contains it
	}{
		"as many as wanted are ready all the time": {
			replicas: 3, update: quick, ends: api.RollOutHealthy, has: map[api.Revision]int{2: 3}, lowest: 3, says: "all instances have version 2",
		},
		"a single instance is never missing": {
			replicas: 1, update: quick, world: func(f *fleet) { f.start[2] = 8 * time.Second },
			ends: api.RollOutHealthy, has: map[api.Revision]int{2: 1}, lowest: 1,
		},
		"a version without an image returns at once": {
			replicas: 3, update: with(func(u *api.Update) { u.Deadline = 3000 }), world: func(f *fleet) { f.broken[2] = true },
			ends: api.RollOutHealthy, has: map[api.Revision]int{1: 3}, lowest: 3, says: "image_not_found",
		},
		"a version that never gets ready returns after the deadline": {
			replicas: 2, update: quick, world: func(f *fleet) { f.start[2] = -1 },
			ends: api.RollOutHealthy, has: map[api.Revision]int{1: 2}, lowest: 2, says: "no further instance became healthy within 30s",
		},
		"without automatic rollback it stops": {
			replicas: 2, update: with(func(u *api.Update) { u.AutoRollback = ptr(false) }), world: func(f *fleet) { f.start[2] = -1 },
			ends: api.RollOutFailed, has: map[api.Revision]int{1: 2}, lowest: 2,
		},
		"without room instances are replaced in place": {
			replicas: 4, update: quick, world: func(f *fleet) { f.room = 4 },
			ends: api.RollOutHealthy, has: map[api.Revision]int{2: 4}, lowest: 3, says: "replaced in place",
		},
		"without room one instance proves that the version works": {
			replicas: 4, update: with(func(u *api.Update) { u.Parallelism = 3 }), world: func(f *fleet) { f.room, f.start[2] = 4, -1 },
			ends: api.RollOutHealthy, has: map[api.Revision]int{1: 4}, lowest: 3,
		},
		"an exclusive service gets no additional instance": {
			replicas: 2, update: quick, spec: func(m *api.Microservice) { m.Exclusive = true },
			ends: api.RollOutHealthy, has: map[api.Revision]int{2: 2}, lowest: 1,
		},
		"surge 0 stops first": {
			replicas: 2, update: with(func(u *api.Update) { u.Surge = ptr(0) }), ends: api.RollOutHealthy, has: map[api.Revision]int{2: 2}, lowest: 1,
		},
		"many at once": {
			replicas: 8, update: with(func(u *api.Update) { u.Parallelism = 4 }), ends: api.RollOutHealthy, has: map[api.Revision]int{2: 8}, lowest: 8,
		},
		"canaries wait": {
			replicas: 3, update: with(func(u *api.Update) { u.Canaries = 2 }), ends: api.RollOutCanary, has: map[api.Revision]int{1: 3, 2: 2}, lowest: 3, says: "wait for treeline rollout promote",
		},
		"canaries of an exclusive service are among its instances": {
			replicas: 3, update: with(func(u *api.Update) { u.Canaries = 1 }), spec: func(m *api.Microservice) { m.Exclusive = true },
			ends: api.RollOutCanary, has: map[api.Revision]int{1: 2, 2: 1}, lowest: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, tt.replicas, tt.update)
			spec := *f.s.Spec
			if tt.spec != nil {
				tt.spec(&spec)
				f.apply(1, spec)
			}
			if tt.world != nil {
				tt.world(f)
			}
			f.apply(2, spec)
			f.until(tt.ends)
			f.step()
			f.want(tt.has)
			if f.lowest != tt.lowest {
				t.Errorf("at least %d instances were ready, want %d", f.lowest, tt.lowest)
			}
			if !strings.Contains(strings.Join(f.events, "\n"), tt.says) {
				t.Errorf("the events are %q, want one about %q", f.events, tt.says)
			}
		})
	}
}

func TestWithoutRoomALargerVersionReplacesNothing(t *testing.T) {
	f := newFleet(t, 2, api.Update{MinHealthyTime: ptr(2), Deadline: 30})
	f.room = 2
	f.next(2)
	for range 20 {
		for k := range f.s.Instances {
			f.s.Instances[k].InPlace = false
		}
		f.step()
	}
	if v, _ := f.m.View(f.s); f.have(1) != 2 || !strings.Contains(v.Detail, "larger place") {
		t.Errorf("%d instances have the old version, want 2: %s", f.have(1), v.Standing())
	}
	f.until(api.RollOutHealthy)
	f.want(map[api.Revision]int{1: 2})
}

func TestCanariesArePromotedOrUndone(t *testing.T) {
	for _, promote := range []bool{true, false} {
		f := newFleet(t, 3, api.Update{MinHealthyTime: ptr(2), Canaries: 1})
		f.next(2)
		if err := f.m.Promote(web); !errors.Is(err, api.ErrConflict) {
			t.Errorf("promote before there is a canary: %v, want ErrConflict", err)
		}
		f.until(api.RollOutCanary)
		for range 600 {
			f.step()
		}
		f.want(map[api.Revision]int{1: 3, 2: 1})
		want := api.Revision(2)
		if promote {
			if err := f.m.Promote(web); err != nil {
				t.Fatal(err)
			}
		} else {
			v, err := f.m.Earlier(web, 0)
			if err != nil || v.Version != 1 {
				t.Fatalf("undo returns to version %d (%v), want 1", v.Version, err)
			}
			f.apply(1, *v.Spec)
			want = 1
		}
		f.until(api.RollOutHealthy)
		f.want(map[api.Revision]int{want: 3})
		if f.lowest < 3 {
			t.Errorf("at least %d instances were ready, want 3", f.lowest)
		}
	}
}

func TestAPausedRollOutReplacesNothingUntilItIsResumed(t *testing.T) {
	f := newFleet(t, 3, api.Update{MinHealthyTime: ptr(2), Deadline: 30})
	f.next(2)
	for f.have(2) < 2 {
		f.step()
	}
	if err := f.m.Pause(web, "alice"); err != nil {
		t.Fatal(err)
	}
	was := f.have(2)
	for range 300 {
		f.step()
	}
	if f.have(2) != was || f.state() != api.RollOutPaused {
		t.Errorf("%d instances have the new version, want %d; the roll-out is %s, want paused", f.have(2), was, f.state())
	}
	if err := f.m.Resume(web); err != nil {
		t.Fatal(err)
	}
	f.until(api.RollOutHealthy)
	f.want(map[api.Revision]int{2: 3})
	if err := f.m.Pause(web, "alice"); !errors.Is(err, api.ErrConflict) {
		t.Errorf("pause a roll-out that is over: %v, want ErrConflict", err)
	}
}

func TestANewerVersionSupersedesARollOut(t *testing.T) {
	f := newFleet(t, 3, api.Update{MinHealthyTime: ptr(2), Deadline: 30})
	f.start[2] = -1
	f.next(2)
	for range 5 {
		f.step()
	}
	f.next(3)
	f.until(api.RollOutHealthy)
	f.want(map[api.Revision]int{3: 3})
	var results []api.RollOutState
	for _, v := range f.m.History(web) {
		results = append(results, v.Result)
	}
	if want := []api.RollOutState{api.RollOutHealthy, api.RollOutSuperseded, api.RollOutHealthy}; !slices.Equal(results, want) || f.lowest < 3 {
		t.Errorf("results %v, want %v; at least %d were ready, want 3", results, want, f.lowest)
	}
}

func TestARestartContinuesARollOut(t *testing.T) {
	for after := range 30 {
		f := newFleet(t, 3, api.Update{MinHealthyTime: ptr(2), Deadline: 30})
		f.start[2] = 3 * time.Second
		f.next(2)
		for range after {
			f.step()
		}
		r := f.m.Record(web)
		f.m = New(f.m.differ)
		f.m.Restore(r)
		f.until(api.RollOutHealthy)
		f.want(map[api.Revision]int{2: 3})
		if f.lowest < 3 {
			t.Errorf("restart after %d s: at least %d instances were ready, want 3", after, f.lowest)
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	f := newFleet(t, 1, api.Update{MinHealthyTime: ptr(0), AutoRollback: ptr(false), Deadline: 20})
	for v := api.Revision(2); v < 40; v++ {
		f.start[v] = -1
		spec := *f.s.Spec
		spec.Environment = []string{"LARGE=" + strings.Repeat("x", 40<<10)}
		f.apply(v, spec)
		f.step()
	}
	h := f.m.History(web)
	if len(h) > api.MaxVersions || len(h) < 5 || h[0].Version != 1 || h[len(h)-1].Version != 39 {
		t.Errorf("%d versions are kept, the first is %d: want at most %d, the healthy version 1 and the newest", len(h), h[0].Version, api.MaxVersions)
	}
	if _, err := f.m.Earlier(web, 2); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("undo to a version that is not kept: %v, want ErrNotFound", err)
	}
}

func TestOneShotsAreReplacedOneByOne(t *testing.T) {
	f := newFleet(t, 3, api.Update{})
	spec := *f.s.Spec
	spec.OneShot = true
	f.apply(1, spec)
	f.start[2] = -1
	f.apply(2, spec)
	for range 10 {
		f.step()
		for k := range f.s.Instances {
			if i := &f.s.Instances[k]; i.Version == 2 {
				i.Open = true
			}
		}
	}
	f.want(map[api.Revision]int{1: 2, 2: 1})
}

// TestARollOutEndsAndKeepsInstancesReady applies random versions at random times, and lets instances
// fail to get ready. At no time are fewer instances ready than the policy allows, and at the end all
// instances have one version that works.
func TestARollOutEndsAndKeepsInstancesReady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "replicas")
		u := api.Update{
			Parallelism: rapid.IntRange(0, 4).Draw(t, "parallelism"), Deadline: rapid.IntRange(20, 60).Draw(t, "deadline"),
			MinHealthyTime: ptr(rapid.IntRange(0, 5).Draw(t, "min_healthy_time")), Canaries: rapid.IntRange(0, 2).Draw(t, "canaries"),
		}
		if rapid.Bool().Draw(t, "has surge") {
			u.Surge = ptr(rapid.IntRange(0, 4).Draw(t, "surge"))
		}
		f := newFleet(t, n, u)
		f.room = n + rapid.IntRange(0, 4).Draw(t, "room")
		floor := n
		if f.s.Policy.Surge == 0 || f.room == n {
			floor = max(0, n-f.s.Policy.Parallelism)
		}
		works := map[api.Revision]bool{1: true}
		last := api.Revision(1)
		for range rapid.IntRange(1, 4).Draw(t, "versions") {
			last++
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				f.broken[last] = true
			case 1:
				f.start[last] = -1
			default:
				works[last] = true
				f.start[last] = time.Duration(rapid.IntRange(1, 8).Draw(t, "start")) * time.Second
			}
			f.next(last)
			for range rapid.IntRange(0, 40).Draw(t, "steps") {
				f.step()
				if f.state() == api.RollOutPaused && rapid.Bool().Draw(t, "resume") {
					_ = f.m.Resume(web)
				} else if rapid.IntRange(0, 30).Draw(t, "pause") == 0 {
					_ = f.m.Pause(web, "alice")
				}
				if rapid.IntRange(0, 60).Draw(t, "restart") == 0 {
					r := f.m.Record(web)
					f.m = New(f.m.differ)
					f.m.Restore(r)
				}
			}
		}
		for range 3000 {
			switch f.state() {
			case api.RollOutPaused:
				_ = f.m.Resume(web)
			case api.RollOutCanary:
				_ = f.m.Promote(web)
			}
			f.step()
			if f.state() == api.RollOutHealthy && f.m.Record(web).Version == f.s.Version && len(f.s.Instances) == n {
				break
			}
		}
		v, _ := f.m.View(f.s)
		if f.state() != api.RollOutHealthy || !works[f.s.Version] || f.have(f.s.Version) != n || len(f.s.Instances) != n {
			t.Fatalf("at the end %d of %d instances have version %d: %s", f.have(f.s.Version), n, f.s.Version, v.Standing())
		}
		if works[last] && f.s.Version != last {
			t.Fatalf("version %d is left, want the newest, %d, which works: %q", f.s.Version, last, f.events)
		}
		if f.lowest < floor {
			t.Fatalf("at least %d instances were ready, want %d", f.lowest, floor)
		}
	})
}

// A canary must take requests: instances that sleep keep their version until the promotion.
func TestCanariesAreInstancesThatAreAwake(t *testing.T) {
	f := newFleet(t, 3, api.Update{MinHealthyTime: ptr(2), Deadline: 30, Canaries: 2, Surge: ptr(0)})
	f.until(api.RollOutHealthy)
	sleep := func(from int) {
		for n := from; n < 3; n++ {
			i := f.at(n)
			i.Dormant, i.Ready, i.Running = true, false, false
			delete(f.due, web.Instance(n))
		}
	}
	sleep(1)
	f.next(2)
	f.until(api.RollOutCanary)
	f.want(map[api.Revision]int{1: 2, 2: 1})
	if err := f.m.Promote(web); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		f.step()
		sleep(1)
	}
	f.until(api.RollOutHealthy)
	f.want(map[api.Revision]int{2: 3})

	sleep(0) // nothing can prove the next version
	f.next(3)
	for range 5 {
		f.step()
		sleep(0)
	}
	f.until(api.RollOutHealthy)
	f.want(map[api.Revision]int{3: 3})
}

// The root may give the version that returns another number.
func TestARollBackWaitsForNoPromotion(t *testing.T) {
	f := newFleet(t, 3, api.Update{MinHealthyTime: ptr(2), Deadline: 10, Canaries: 1, Surge: ptr(0)})
	f.until(api.RollOutHealthy)
	f.broken[2] = true
	first := *f.s.Spec
	f.next(2)
	f.renumber = 3
	f.until(api.RollOutHealthy)
	if f.s.Spec.Code != first.Code {
		t.Errorf("the service has %s, want %s", f.s.Spec.Code, first.Code)
	}
	f.want(map[api.Revision]int{3: 3})
}

// Dormant instances take no requests and are replaced at once. The others prove the version first.
func TestDormantInstancesDoNotHoldUpARollOut(t *testing.T) {
	f := newFleet(t, 4, api.Update{MinHealthyTime: ptr(2), Deadline: 30})
	sleep := func() {
		for n := 1; n < 4; n++ {
			i := f.at(n)
			i.Dormant, i.Ready, i.Running = true, false, false
			delete(f.due, web.Instance(n))
		}
	}
	f.until(api.RollOutHealthy)
	sleep()
	f.next(2)
	f.lowest = f.ready()
	for range 20 {
		f.step()
		sleep()
	}
	if f.state() != api.RollOutHealthy || f.lowest < 1 {
		t.Errorf("the roll-out is %s, at least %d were ready; want healthy and 1", f.state(), f.lowest)
	}
	f.want(map[api.Revision]int{2: 4})
}
