package lab

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	numberedEvery = 10 * time.Millisecond
	numberedTime  = 10 * time.Second // bounds one request
	numberedOpen  = 200              // requests under way; while so many are, none is sent
)

// Numbered is a client that sends numbered requests at a fixed rate, each on a new connection, and
// remembers which were not answered. Unlike a Caller it does not wait for the answers.
type Numbered struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	sent     int
	answered int
	last     int // the highest number that was answered
	lost     []LostRequest
}

// LostRequest is a numbered request without an answer.
type LostRequest struct {
	Number int
	Failure
}

func (r LostRequest) String() string { return fmt.Sprintf("request %d: %s", r.Number, r.Failure) }

// Number makes a workload send 100 requests a second to a Server at an address or a name with a
// port, until Stop.
func Number(in *Inside, at string) *Numbered {
	ctx, stop := context.WithCancel(context.Background())
	n := &Numbered{stop: stop}
	n.done.Go(func() {
		tick := time.NewTicker(numberedEvery)
		defer tick.Stop()
		slots := make(chan struct{}, numberedOpen)
		for number := 1; ; number++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			n.mu.Lock()
			n.sent++
			n.mu.Unlock()
			n.done.Go(func() {
				defer func() { <-slots }()
				n.ask(in, at, number)
			})
		}
	})
	return n
}

func (n *Numbered) ask(in *Inside, at string, number int) {
	began := time.Now()
	_, err := in.Who(at, numberedTime)
	n.mu.Lock()
	defer n.mu.Unlock()
	switch took := time.Since(began); {
	case err == nil:
		n.answered++
		n.last = max(n.last, number)
	case n.answered == 0: // a running server may not listen yet
	case took > 2*numberedTime: // the whole machine stalled
	default:
		n.lost = append(n.lost, LostRequest{number, Failure{began, took, err}})
	}
}

// Sent returns the number of the newest request.
func (n *Numbered) Sent() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent
}

// Lost returns the requests from a number on that were not answered.
func (n *Numbered) Lost(from int) []LostRequest {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(n.lost), func(r LostRequest) bool { return r.Number < from })
}

// Since returns an error unless more than count requests after a number were sent and the newest
// answered is one of them.
func (n *Numbered) Since(number, count int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last < number+count {
		return fmt.Errorf("the newest answered request is %d, want %d; the last lost ones are %v", n.last, number+count, n.lost[max(0, len(n.lost)-2):])
	}
	return nil
}

// Stop ends the client and waits for the answers to what it has sent.
func (n *Numbered) Stop() {
	n.stop()
	n.done.Wait()
}
