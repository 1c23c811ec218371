package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Within waits until ok returns nil, and fails the test if it does not in time.
func Within(t T, d time.Duration, what string, ok func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = ok(); err == nil {
			return
		}
	}
	t.Fatalf("%s: not within %s: %v", what, d, err)
}

// Caller asks again and again, each time by a new connection, and counts who
// answers and what fails.
type Caller struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	ok     map[api.InstanceID]int
	failed []Failure

	answered bool // once
}

// Failure is a request that failed.
type Failure struct {
	Began time.Time
	Took  time.Duration
	Err   error
}

func (f Failure) String() string {
	return fmt.Sprintf("%s after %s: %v", f.Began.Format("15:04:05.000"), f.Took.Round(time.Millisecond), f.Err)
}

// callTime is how long a request may take.
const callTime = 5 * time.Second

// Call has a workload ask a Server at an address and a port, until the caller is
// stopped.
func Call(in *Inside, at string) *Caller {
	return CallBy(func() (api.InstanceID, error) { return in.Who(at, callTime) })
}

// CallBy asks in another way, which says who answered.
func CallBy(ask func() (api.InstanceID, error)) *Caller {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Caller{cancel: cancel, ok: map[api.InstanceID]int{}}
	c.done.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			id, err := ask()
			took := time.Since(began)
			c.mu.Lock()
			switch {
			case err == nil:
				c.ok[id]++
				c.answered = true
			case !c.answered && errors.Is(err, syscall.ECONNREFUSED): // a server that runs may not listen yet
			case took > 2*callTime: // the whole machine stood still
			default:
				c.failed = append(c.failed, Failure{began, took, err})
			}
			c.mu.Unlock()
			time.Sleep(2 * time.Millisecond) // the machine is for others, too
		}
	})
	return c
}

// So waits until the caller's counts are so.
func (c *Caller) So(t T, what string, ok func(map[api.InstanceID]int) bool) {
	t.Helper()
	Within(t, 60*time.Second, what, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !ok(c.ok) {
			return fmt.Errorf("answered %v, failed %v", c.ok, c.failed)
		}
		return nil
	})
}

// Forget counts from zero.
func (c *Caller) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.ok)
	c.failed = nil
}

// Answers is how often each instance has answered.
func (c *Caller) Answers() map[api.InstanceID]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.ok)
}

// Failures are the requests that failed.
func (c *Caller) Failures() []Failure {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.failed)
}

// More waits for n more answers.
func (c *Caller) More(t T, n int) {
	t.Helper()
	sum := func(m map[api.InstanceID]int) (s int) {
		for v := range maps.Values(m) {
			s += v
		}
		return s
	}
	was := sum(c.Answers())
	c.So(t, fmt.Sprintf("%d more answers", n), func(m map[api.InstanceID]int) bool { return sum(m) >= was+n })
}

// Stop ends the caller.
func (c *Caller) Stop() {
	c.cancel()
	c.done.Wait()
}
