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

// Within waits until ok returns nil, and fails the test if that does not happen within d. Calls of ok
// that take long, for example because they look at every process of the machine, are repeated less often.
func Within(t T, d time.Duration, what string, ok func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(d); time.Now().Before(end); {
		began := time.Now()
		if err = ok(); err == nil {
			return
		}
		time.Sleep(min(max(20*time.Millisecond, 4*time.Since(began)), 200*time.Millisecond))
	}
	t.Fatalf("%s: not within %s: %v", what, d, err)
}

// Caller makes requests continuously, each on a new connection, and counts answers by
// instance and failures.
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

// callTime bounds the duration of a request.
const callTime = 5 * time.Second

// Call makes a workload call a Server at an address with a port until Stop.
func Call(in *Inside, at string) *Caller {
	return CallBy(func() (api.InstanceID, error) { return in.Who(at, callTime) })
}

// CallBy is Call with another request, which returns the instance that answered.
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
			case !c.answered && errors.Is(err, syscall.ECONNREFUSED): // a running server may not listen yet
			case took > 2*callTime: // the whole machine stalled
			default:
				c.failed = append(c.failed, Failure{began, took, err})
			}
			c.mu.Unlock()
			time.Sleep(10 * time.Millisecond) // a request costs two nodes some 2 ms of processor time
		}
	})
	return c
}

// So waits until the caller's counts meet the condition.
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

// Forget resets the counts.
func (c *Caller) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.ok)
	c.failed = nil
}

// Answers returns the number of answers by instance.
func (c *Caller) Answers() map[api.InstanceID]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.ok)
}

// Failures returns the failed requests.
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
