package api_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func jobSLA(fields string) string {
	return `{"sla_version":"v2.0","applications":[{"application_name":"a","application_namespace":"b","microservices":[{
		"microservice_name":"c","microservice_namespace":"d","virtualization":"container","code":"x/y:1",` + fields + `}]}]}`
}

func TestFieldsOfJobs(t *testing.T) {
	for fields, want := range map[string]string{
		`"one_shot":true,"schedule":{"cron":"@daily","overlap":"often"}`:                                     "forbid, replace, wait, allow",
		`"one_shot":true,"schedule":{"cron":"@daily","runs_at_once":2}`:                                      "runs do not overlap",
		`"one_shot":true,"schedule":{"cron":"@daily","overlap":"allow","runs_at_once":1}`:                    "overlap is allow",
		`"one_shot":true,"schedule":{"cron":"@daily","overlap":"allow","runs_at_once":21}`:                   "20",
		`"one_shot":true,"completions":600,"schedule":{"cron":"@daily","overlap":"allow","runs_at_once":20}`: "more than 10000",
		`"one_shot":true,"replicas":4,"schedule":{"cron":"@daily","overlap":"allow"}`:                        "completions times runs_at_once, 3",
		`"one_shot":true,"replicas":6,"completions":2,"schedule":{"cron":"@daily","overlap":"allow"}`:        "",
		`"one_shot":true,"completions":9,"parallelism":5,"schedule":{"cron":"@daily"}`:                       "",
		`"one_shot":true,"schedule":{"cron":"@daily","starting_deadline":86401}`:                             "86400",
		`"one_shot":true,"schedule":{}`:                                       "cron",
		`"schedule":{"cron":"@daily"}`:                                        "schedule applies to a one_shot",
		`"one_shot":true,"schedule":{"cron":"@daily"},"time_to_live":5`:       "a schedule never ends",
		`"one_shot":true,"schedule":{"cron":"@daily"},"on_disconnect":"keep"`: "run twice",
		`"deadline":5`: "deadline applies to a one_shot",
		`"one_shot":true,"completions":5,"replicas":4`: "the same",
		`"one_shot":true,"retries":5`:                  "max_attempts",
		`"one_shot":true,"completions":5,"replicas":5,"parallelism":2,"deadline":1,"time_to_live":1`: "",
		`"one_shot":true,"schedule":{"cron":"30 2 29 2 *","time_zone":"Asia/Tokyo","suspend":true}`:  "",
		`"schedule":null,"deadline":0,"parallelism":0,"completions":0,"time_to_live":0`:              "",
	} {
		_, err := api.ParseSLA([]byte(jobSLA(fields)))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want an error with %q", fields, err, want)
		}
		if f := (*api.Faults)(nil); errors.As(err, &f) {
			for _, fault := range f.Faults {
				if fault.Fix == "" {
					t.Errorf("%s: no fix", fields)
				}
			}
		}
	}
}

func TestJobsAreCompleted(t *testing.T) {
	for fields, want := range map[string]func(api.Microservice) bool{
		`"one_shot":true,"schedule":{"cron":"@daily"}`:                                                    func(m api.Microservice) bool { return m.Exclusive && m.Dormant(0) == api.ReasonScheduled },
		`"one_shot":true,"schedule":{"cron":"@daily","overlap":"allow","runs_at_once":4},"completions":2`: func(m api.Microservice) bool { return *m.Replicas == 8 && m.Completions == 2 && m.Together() },
		`"one_shot":true,"completions":7`:                                                                 func(m api.Microservice) bool { return m.Replicas != nil && *m.Replicas == 7 },
		`"one_shot":true,"time_to_live":7`:                                                                func(m api.Microservice) bool { return m.Replicas != nil && *m.Replicas == 1 },
		`"one_shot":true,"time_to_live":7,"replicas":3`:                                                   func(m api.Microservice) bool { return *m.Replicas == 3 && m.Completions == 0 },
	} {
		sla, err := api.ParseSLA([]byte(jobSLA(fields)))
		if err != nil || !want(sla.Applications[0].Services[0]) {
			t.Errorf("%s gives %+v (%v)", fields, sla, err)
		}
	}
}
