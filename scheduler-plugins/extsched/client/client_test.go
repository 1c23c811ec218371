package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/client"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// service starts an HTTP scheduler with the handler f.
func service(t *testing.T, f func(w http.ResponseWriter, ask sched.Ask)) *client.Scheduler {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ask sched.Ask
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
			t.Errorf("decode the question: %v", err)
		}
		f(w, ask)
	}))
	t.Cleanup(s.Close)
	o, err := client.Open(t.Context(), s.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close(context.Background()) })
	return o
}

func ask(within time.Duration) sched.Ask {
	return sched.Ask{
		Key: "k1", Level: sched.Nodes, Seed: 1<<63 + 1, Deadline: within,
		Request:    sched.Request{ID: "acme/a.b.c.d#0", Ports: []sched.Port{{Protocol: "tcp", Number: 80}}},
		Candidates: []sched.Candidate{{ID: "n1", Ports: map[sched.Port]int{{Protocol: "tcp", Number: 81}: 1}}, {ID: "n2"}},
	}
}

func TestAnswersOfAnExternalScheduler(t *testing.T) {
	o := service(t, func(w http.ResponseWriter, a sched.Ask) {
		if a.Seed != 1<<63+1 || len(a.Candidates) != 2 || a.Request.ID != "acme/a.b.c.d#0" {
			t.Errorf("the service received %+v", a)
		}
		_, _ = fmt.Fprintf(w, `{"key":%q,"ranked":[{"id":"n2","score":2},{"id":"n1","score":1}]}`, a.Key)
	})
	a := o.Rank(t.Context(), ask(time.Minute))
	if a.Error != "" || a.Key != "k1" || len(a.Ranked) != 2 || a.Ranked[0].ID != "n2" {
		t.Fatalf("got %+v", a)
	}
}

func TestEveryFaultBecomesAnAnswerWithAnError(t *testing.T) {
	for name, tt := range map[string]struct {
		serve func(w http.ResponseWriter, a sched.Ask)
		error string
	}{
		"hangs":   {nil, "no answer in time"},
		"crashes": {func(http.ResponseWriter, sched.Ask) { panic(http.ErrAbortHandler) }, "EOF"},
		"refuses": {func(w http.ResponseWriter, _ sched.Ask) { w.WriteHeader(http.StatusInternalServerError) }, "500"},
		"redirects": {func(w http.ResponseWriter, _ sched.Ask) {
			w.Header().Set("Location", "http://192.0.2.1/")
			w.WriteHeader(http.StatusFound)
		}, "302"},
		"sends no JSON":    {func(w http.ResponseWriter, _ sched.Ask) { _, _ = w.Write([]byte("hello")) }, "decode the answer"},
		"sends too much":   {func(w http.ResponseWriter, _ sched.Ask) { _, _ = w.Write(make([]byte, 5<<20)) }, "more than"},
		"answers another":  {func(w http.ResponseWriter, _ sched.Ask) { _, _ = w.Write([]byte(`{"key":"k2"}`)) }, "key"},
		"reports an error": {func(w http.ResponseWriter, _ sched.Ask) { _, _ = w.Write([]byte(`{"key":"k1","error":"no model"}`)) }, "no model"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			within, hung := time.Minute, make(chan struct{})
			if tt.serve == nil {
				within, tt.serve = 50*time.Millisecond, func(http.ResponseWriter, sched.Ask) { <-hung }
			}
			o := service(t, tt.serve)
			t.Cleanup(func() { close(hung) }) // runs before the server is closed, which waits for the handler
			a := o.Rank(t.Context(), ask(within))
			if a.Key != "k1" || len(a.Ranked) != 0 || !strings.Contains(a.Error, tt.error) {
				t.Fatalf("got %+v, want an error with %q", a, tt.error)
			}
		})
	}
}

func TestAFailingSchedulerIsNotAsked(t *testing.T) {
	var asked atomic.Int32
	o := service(t, func(w http.ResponseWriter, _ sched.Ask) {
		asked.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	})
	for range 10 {
		if a := o.Rank(t.Context(), ask(time.Minute)); a.Error == "" {
			t.Fatal("a failed question has no Error")
		}
	}
	if n := asked.Load(); n != 3 {
		t.Fatalf("asked %d times, want 3, then a pause", n)
	}
	if a := o.Rank(t.Context(), ask(time.Minute)); !strings.Contains(a.Error, "not asked for another") {
		t.Fatalf("got %+v", a)
	}
}

func TestOpenRefusesInvalidSettings(t *testing.T) {
	for _, setting := range []string{"http://", "https:///x", "ftp://x/", "wasm:/no/such/module"} {
		if o, err := client.Open(t.Context(), setting); err == nil {
			t.Errorf("opened %s as %v, want an error", setting, o)
		} else if setting != "wasm:/no/such/module" && !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", setting, err)
		}
	}
	o, err := client.Open(t.Context(), "https://me:secret@sched.example/rank")
	if err != nil || strings.Contains(o.Name(), "secret") {
		t.Fatalf("name is %v, error %v, want no password", o.Name(), err)
	}
}

// The core then decides at once without waiting for the deadline.
func TestAFullAskerAnswersBusy(t *testing.T) {
	const asked = 1000
	release := make(chan struct{})
	o := service(t, func(w http.ResponseWriter, a sched.Ask) {
		<-release
		_, _ = fmt.Fprintf(w, `{"key":%q}`, a.Key)
	})
	answers := make(chan sched.Answer, asked)
	a := client.NewAsker(o, func(ans sched.Answer) { answers <- ans })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	for i := range asked {
		q := ask(time.Minute)
		q.Key = fmt.Sprint(i)
		a.Send(q)
	}
	for range asked - 256 - client.MaxParallel { // the questions before them are unanswered
		if ans := <-answers; ans.Error != "busy" {
			t.Fatalf("question %s is answered with %q", ans.Key, ans.Error)
		}
	}
	close(release)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
