package sched_test

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func TestInvalidAnswersAreRefused(t *testing.T) {
	ask := &sched.Ask{Key: "k", Request: sched.Request{Virtualization: "container"}, Candidates: many(3)}
	id := func(i int) string { return ask.Candidates[i].ID }
	for name, tt := range map[string]struct {
		ans  sched.Answer
		kind error
	}{
		"good":             {sched.Answer{Key: "k", Ranked: []sched.Choice{{ID: id(1), Score: 1}, {ID: id(0), Score: 2}}}, nil},
		"empty":            {sched.Answer{Key: "k"}, nil},
		"crashed":          {sched.Answer{Key: "k", Error: "it crashed"}, api.ErrUnavailable},
		"another question": {sched.Answer{Key: "l"}, api.ErrInvalid},
		"no candidate":     {sched.Answer{Key: "k", Ranked: []sched.Choice{{ID: "else"}}}, api.ErrInvalid},
		"one twice":        {sched.Answer{Key: "k", Ranked: []sched.Choice{{ID: id(0)}, {ID: id(0)}}}, api.ErrInvalid},
		"too many":         {sched.Answer{Key: "k", Ranked: make([]sched.Choice, 4)}, api.ErrInvalid},
		"NaN":              {sched.Answer{Key: "k", Ranked: []sched.Choice{{ID: id(0), Score: math.NaN()}}}, api.ErrInvalid},
		"infinite":         {sched.Answer{Key: "k", Ranked: []sched.Choice{{ID: id(0), Score: math.Inf(1)}}}, api.ErrInvalid},
	} {
		if err := sched.Check(ask, &tt.ans); tt.kind == nil && err != nil || !errors.Is(err, tt.kind) {
			t.Errorf("Check of %s: %v, want the kind of error in the table", name, err)
		}
	}
}

// All fields of an Ask are encoded as JSON, except the ports that are in use.
func TestAsksSurviveJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ask := plugintest.Asks().Draw(t, "ask")
		body, err := json.Marshal(ask)
		if err != nil {
			t.Fatal(err)
		}
		var back sched.Ask
		if err := json.Unmarshal(body, &back); err != nil {
			t.Fatal(err)
		}
		for i := range back.Candidates {
			if !plugintest.Fits(&back.Request, back.Candidates[i]) {
				t.Fatalf("%+v fits no more", back.Candidates[i])
			}
		}
		a := sched.Place(&ask.Request, ask.Candidates, rom.Plugin{}, ask.Seed)
		if b := sched.Place(&back.Request, back.Candidates, rom.Plugin{}, back.Seed); !reflect.DeepEqual(a, b) {
			t.Fatalf("%v, and after the way %v", a, b)
		}
	})
}
