package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func TestUpdatesThatCannotWorkAreRefused(t *testing.T) {
	for members, want := range map[string]struct{ field, says string }{
		`"update":{"parallelism":-1}`:                    {"parallelism", "0 to 10000"},
		`"update":{"surge":10001}`:                       {"surge", "0 to 10000"},
		`"update":{"deadline":90000}`:                    {"deadline", "0 to 86400 s"},
		`"update":{"min_healthy_time":3601}`:             {"min_healthy_time", "0 to 3600 s"},
		`"update":{"min_healthy_time":60,"deadline":60}`: {"min_healthy_time", "not below the deadline of 60 s"},
		`"update":{"deadline":5}`:                        {"min_healthy_time", "of 5 s is not below the deadline of 5 s"},
		`"update":{"auto_rollback":"yes"}`:               {"auto_rollback", "a boolean"},
		`"update":{"canary":1}`:                          {"canary", "no field"},
		`"volumes":[{"name":"v","type":"local","size":64,"mount_path":"/v"}],"update":{"surge":1}`: {"surge", "local volume"},
		`"exclusive":true,"update":{"surge":1}`:                                                    {"surge", "cannot have an additional instance"},
		`"one_shot":true,"update":{"canaries":1}`:                                                  {"canaries", "does not apply to a one_shot"},
		`"one_shot":true,"update":{"surge":0,"parallelism":2}`:                                     {"parallelism", "does not apply to a one_shot"},
		`"update":[]`:                  {"update", "an object"},
		`"update":{"parallelism":"2"}`: {"parallelism", "a"},
		`"one_shot":true,"update":{"deadline":600,"surge":"x"}`: {"surge", "a"},
	} {
		found := false
		faults := faultsOf(t, placed(members))
		for _, f := range faults {
			found = found || f.Field == want.field && strings.Contains(f.Message+" "+f.Fix, want.says)
		}
		if !found {
			t.Errorf("%s: faults %+v, want one of %s that contains %q", members, faults, want.field, want.says)
		}
	}
}

func TestUpdatePolicies(t *testing.T) {
	zero, two, no := 0, 2, false
	base := api.UpdatePolicy{Parallelism: 1, Surge: 1, MinHealthy: 5 * time.Second, NextHealthy: time.Second, Deadline: 5 * time.Minute, AutoRollback: true}
	with := func(change func(*api.UpdatePolicy)) api.UpdatePolicy {
		p := base
		change(&p)
		return p
	}
	for name, tt := range map[string]struct {
		m        api.Microservice
		replicas int
		want     api.UpdatePolicy
	}{
		"default":            {replicas: 3, want: base},
		"none wanted":        {replicas: 0, want: base},
		"a quarter":          {replicas: 9, want: with(func(p *api.UpdatePolicy) { p.Parallelism, p.Surge = 2, 2 })},
		"not more than all":  {m: api.Microservice{Update: &api.Update{Parallelism: 50, Canaries: 70}}, replicas: 4, want: with(func(p *api.UpdatePolicy) { p.Parallelism, p.Surge, p.Canaries = 4, 4, 4 })},
		"surge of its own":   {m: api.Microservice{Update: &api.Update{Surge: &two}}, replicas: 4, want: with(func(p *api.UpdatePolicy) { p.Surge = 2 })},
		"stop first":         {m: api.Microservice{Update: &api.Update{Surge: &zero, MinHealthyTime: &zero}}, replicas: 4, want: with(func(p *api.UpdatePolicy) { p.Surge, p.MinHealthy, p.NextHealthy = 0, 0, 0 })},
		"local volume":       {m: api.Microservice{Volumes: []api.Volume{{Name: "v", Type: api.VolumeLocal}}}, replicas: 8, want: with(func(p *api.UpdatePolicy) { p.Parallelism, p.Surge = 2, 0 })},
		"exclusive":          {m: api.Microservice{Exclusive: true}, replicas: 8, want: with(func(p *api.UpdatePolicy) { p.Parallelism, p.Surge = 2, 0 })},
		"without a rollback": {m: api.Microservice{Update: &api.Update{AutoRollback: &no, Deadline: 60}}, replicas: 1, want: with(func(p *api.UpdatePolicy) { p.AutoRollback, p.Deadline = false, time.Minute })},
		"one_shot":           {m: api.Microservice{OneShot: true}, replicas: 8, want: api.UpdatePolicy{Parallelism: 1, OneByOne: true}},
	} {
		if got := tt.m.UpdatePolicy(tt.replicas); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}
