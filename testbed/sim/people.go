package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// person manages one application: changes it, repeats unanswered requests, and remembers
// what the root accepted.
type person struct {
	w      *World
	tenant api.Tenant
	name   string

	exists   bool
	services []promised
	busy     bool                   // a request is under way
	unsure   bool                   // an attempt of the request got no answer and may have had its effect
	loose    map[api.ServiceID]bool // services that an operator scaled, whose number is not checked
	serial   int

	urgencies map[string]int // by service, see priority
}

// promised is a service with what the root accepted for it.
type promised struct {
	spec     api.Microservice
	replicas int
}

func (p *person) app() api.AppID { return p.tenant.App(p.name, "prod") }

func (p *person) service(i int) api.ServiceID {
	return p.app().Service(p.services[i].spec.Name, "v1")
}

// act starts one change, unless one is under way.
func (p *person) act() {
	if p.busy {
		return
	}
	w := p.w
	if p.exists && w.opts.Only == OnlySilence {
		return // nothing else changes
	}
	switch r := w.chance.IntN(12); {
	case !p.exists:
		p.apply(p.design(1 + w.chance.IntN(3)))
	case r >= 10:
		p.steer()
	case r < 4:
		i := w.chance.IntN(len(p.services))
		if replicas := w.chance.IntN(6); p.services[i].spec.Scale != nil {
			p.apply(slices.Clone(p.services)) // its number is not for people to change
		} else {
			p.scale(i, replicas)
		}
	case r < 7:
		p.apply(p.redesign())
	case r < 9:
		p.remove()
	default:
		p.apply(slices.Clone(p.services)) // the same again
	}
}

func (p *person) design(n int) []promised {
	var out []promised
	for i := range n {
		out = append(out, p.newService(fmt.Sprintf("s%d", i)))
	}
	return out
}

// redesign changes one service, adds one or leaves one out.
func (p *person) redesign() []promised {
	out := slices.Clone(p.services)
	i := p.w.chance.IntN(len(out))
	switch r := p.w.chance.IntN(5); {
	case r == 0 && i > 0 && out[i].spec.Name != firstService:
		return slices.Delete(out, i, i+1)
	case r == 1 && len(out) < 4:
		used := func(name string) bool {
			return slices.ContainsFunc(out, func(s promised) bool { return s.spec.Name == name })
		}
		for k := range 4 {
			if name := fmt.Sprintf("s%d", k); !used(name) {
				return append(out, p.newService(name))
			}
		}
	}
	fresh := p.newService(out[i].spec.Name)
	if p.w.chance.IntN(3) == 0 {
		fresh.spec.Replicas, fresh.replicas = nil, out[i].replicas // keep the present number
	}
	out[i] = fresh
	return out
}

func (p *person) newService(name string) promised {
	w := p.w
	pick := func(n int) bool { return w.chance.IntN(n) == 0 }
	kind := []string{"ok", "ok", "ok", "ok", "ok", "deaf", "flaky", "crash", "missing"}[w.chance.IntN(9)]
	p.serial++
	replicas := 1 + w.chance.IntN(4)
	m := api.Microservice{
		Name: name, Namespace: "v1", Virtualization: "container",
		Code:   image(p.tenant, fmt.Sprintf("%s-%d", name, p.serial), kind),
		Memory: int64(64 << w.chance.IntN(5)), VCPUs: float64(1+w.chance.IntN(12)) / 8,
		Exclusive: pick(3), OneShot: pick(8), StopGrace: w.chance.IntN(12),
	}
	if pick(8) {
		m.OnDisconnect = api.StopWhenCutOff
	}
	if pick(12) {
		m.Arch = []string{"arm64"}
	}
	if pick(8) {
		c := w.clusters[w.chance.IntN(len(w.clusters))]
		m.Constraints = []api.Constraint{{Type: "clusters", Allowed: []string{c.name}}}
	} else if pick(10) {
		c := w.clusters[w.chance.IntN(len(w.clusters))]
		m.Constraints = []api.Constraint{{Type: "direct", Cluster: c.name, Node: "n1;n2"}}
	}
	p.wishes(&m)
	if !m.OneShot {
		m.Update = w.newUpdate(m.Exclusive)
	}
	m.Replicas = &replicas
	if m.OneShot && pick(2) {
		m.Exclusive, m.OnDisconnect, m.MaxAttempts = true, "", 1+w.chance.IntN(2) // as the parser does
		m.Schedule = &api.Schedule{
			Cron: []string{"* * * * *", "*/3 * * * *"}[w.chance.IntN(2)], StartingDeadline: 10 + w.chance.IntN(300),
			Overlap: []api.Overlap{"", api.OverlapReplace, api.OverlapWait, api.OverlapAllow}[w.chance.IntN(4)], Suspend: pick(8),
		}
		if m.Schedule.Overlap == api.OverlapAllow {
			m.Schedule.RunsAtOnce = 2
		}
		if pick(3) {
			m.Parallelism = 1 + w.chance.IntN(2)
		}
	}
	m = w.opts.scales(w.opts.checks(w.opts.Only.plain(m)))
	return promised{m, replicas}
}

func (p *person) apply(services []promised) {
	spec := api.Application{Name: p.name, Namespace: "prod"}
	for i := range services {
		services[i].spec = budgeted(services[i].spec)
		s := services[i]
		spec.Services = append(spec.Services, s.spec)
		if s.spec.Replicas != nil {
			services[i].replicas = *s.spec.Replicas
		}
		if s.spec.Scale != nil {
			services[i].replicas = s.spec.Scale.Max
		}
	}
	p.insist(root.Apply{Tenant: p.tenant, Spec: spec, By: "sim"}, api.ErrConflict, nil, func() {
		p.exists, p.services = true, services
	})
}

func (p *person) scale(i, replicas int) {
	p.insist(root.Scale{Service: p.service(i), Replicas: replicas, By: "sim"}, nil, nil, func() {
		p.services[i].replicas = replicas
	})
}

func (p *person) remove() {
	p.insist(root.DeleteApp{App: p.app(), By: "sim"}, nil, api.ErrNotFound, func() {
		p.exists, p.services = false, nil
	})
}

// insist repeats a request until it is answered. After the error later it tries again. The
// error done means that an unanswered attempt had its effect.
func (p *person) insist(in root.Input, later, done error, then func()) {
	p.busy, p.unsure = true, false
	p.try(in, later, done, then)
}

func (p *person) try(in root.Input, later, done error, then func()) {
	w := p.w
	again := func() { w.after(w.between(time.Second, 3*time.Second), func() { p.try(in, later, done, then) }) }
	a := w.root.proc.give(in)
	switch {
	case !a.taken:
		p.unsure = p.unsure || w.root.proc.paused || errors.Is(a.err, errCrashed)
		again()
		return
	case later != nil && errors.Is(a.err, later), errors.Is(a.err, api.ErrUnavailable): // as when a root has just started
		again()
		return
	case errors.Is(a.err, api.ErrConflict) && p.scalesItself(in):
		w.note("people", "%s is refused", told(in))
		p.busy = false
		return
	case a.err != nil && !(done != nil && errors.Is(a.err, done) && p.unsure):
		w.violate("lost", string(p.app()), "%s is refused: %v", inputName(in), a.err)
		return
	}
	w.note("people", "%s is answered", told(in))
	p.busy = false
	then()
}

// scalesItself reports whether the input is a change of the number of a service that has returned to an earlier
// version with scale, which the root refuses.
func (p *person) scalesItself(in root.Input) bool {
	asked, ok := in.(root.Scale)
	s, known := p.w.root.core.Service(asked.Service)
	return ok && known && s.Spec.Scale != nil && slices.ContainsFunc(p.services, func(want promised) bool {
		return want.spec.Name == s.Spec.Name && want.spec.Code != s.Spec.Code && p.w.returned(s.ID, want.spec.Code)
	})
}

func told(in root.Input) string {
	switch in := in.(type) {
	case root.Apply:
		s := "apply " + string(in.Tenant.App(in.Spec.Name, in.Spec.Namespace))
		for _, m := range in.Spec.Services {
			n := "–"
			if m.Replicas != nil {
				n = fmt.Sprint(*m.Replicas)
			}
			s += fmt.Sprintf(" %s×%s", m.Name, n)
			if m.Exclusive {
				s += "!"
			}
		}
		return s
	case root.Scale:
		return fmt.Sprintf("scale %s to %d", in.Service, in.Replicas)
	case root.DeleteApp:
		return "delete " + string(in.App)
	}
	return inputName(in)
}

// unkept lists the differences between the root's objects and what it accepted.
func (p *person) unkept(say sayFunc) {
	name := string(p.app())
	if p.busy {
		say(name, "a request is still unanswered")
		return
	}
	app, ok := p.w.root.core.App(p.app())
	switch {
	case ok != p.exists:
		say(name, "exists: %v, want %v", ok, p.exists)
		return
	case !ok:
		return
	case app.Leaving:
		say(name, "is leaving")
		return
	case len(app.Services) != len(p.services):
		say(name, "has %d services, want %d", len(app.Services), len(p.services))
		return
	}
	for i, want := range p.services {
		id := p.service(i)
		s, ok := p.w.root.core.Service(id)
		if !ok {
			say(string(id), "does not exist any more")
			continue
		}
		if s.Replicas != want.replicas && !p.loose[id] && (s.Spec.Scale == nil || !p.w.returned(id, want.spec.Code)) { // an earlier version returns with its scale
			say(string(id), "has %d replicas, want %d", s.Replicas, want.replicas)
		}
		if s.Spec.Code != want.spec.Code && !p.w.returned(id, want.spec.Code) {
			say(string(id), "runs %s, want %s", s.Spec.Code, want.spec.Code)
		}
		if p.w.chaos.awaitsPeople(s) {
			say("people", "will go on with the roll-out of %s, which is %s", id, s.RollOut) // even if its image is faulty
		}
		have := 0
		for _, in := range p.w.root.core.Instances(p.tenant) {
			if in.Service == id && !in.Leaving {
				have++
			}
		}
		if have != s.Replicas {
			say(string(id), "has %d replicas, but %d instances", s.Replicas, have)
		}
	}
}
