package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
)

const (
	writeEvery = 100 * time.Millisecond
	writeTime  = 5 * time.Second // bounds one write
)

// Writes creates numbered applications without instances at the root continuously, and remembers
// which writes the root acknowledged.
type Writes struct {
	l    *Lab
	stop context.CancelFunc
	done sync.WaitGroup

	mu    sync.Mutex // guards the fields below, and is held during a write
	next  int
	total int
	there map[api.AppID]bool // acknowledged: true if it was created, false if it was deleted
}

// Write starts to write until the lab ends or Stop.
func (l *Lab) Write() *Writes {
	ctx, stop := context.WithCancel(l.ctx)
	w := &Writes{l: l, stop: stop, there: map[api.AppID]bool{}}
	w.done.Go(func() {
		for ctx.Err() == nil {
			w.write(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(writeEvery):
			}
		}
	})
	l.wg.Go(w.done.Wait)
	return w
}

func (w *Writes) write(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	w.next++
	name := fmt.Sprintf("w%d", w.next)
	if _, err := w.l.API.Apply(ctx, Encode(App(name, w.l.Process("none", 0))), client.ApplyOptions{Tenant: w.l.Tenant}); err == nil {
		w.there[w.l.Tenant.App(name, Namespace)] = true
		w.total++
	}
}

// Acknowledged returns the number of acknowledged writes.
func (w *Writes) Acknowledged() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

// Check returns an error that names the acknowledged writes that the root does not show, or its
// error if it cannot be read. It then deletes what it has checked, so that the number of
// applications stays small.
func (w *Writes) Check(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all, _, err := w.l.API.Apps(ctx, client.ListOptions{Tenant: w.l.Tenant})
	if err != nil {
		return fmt.Errorf("list applications: %w", err)
	}
	shown := map[api.AppID]bool{}
	for _, a := range all {
		shown[a.ID] = true
	}
	var lost []error
	for id, there := range w.there {
		if shown[id] != there {
			lost = append(lost, fmt.Errorf("%w: %s: acknowledged as existing: %v, shown: %v", errLost, id, there, shown[id]))
		}
	}
	if len(lost) > 0 {
		return errors.Join(lost[:min(len(lost), 5)]...)
	}
	for id, there := range w.there {
		if !there {
			delete(w.there, id)
			continue
		}
		if _, err := w.l.API.DeleteApp(ctx, id, 0); err != nil {
			delete(w.there, id) // it is unknown whether it was deleted
			return fmt.Errorf("delete %s: %w", id, err)
		}
		w.there[id] = false
		w.total++
	}
	return nil
}

// errLost is the kind of an error that repetition does not remove.
var errLost = errors.New("acknowledged write lost")

// Kept waits until Check returns nil, and fails the test at once if an acknowledged write is lost.
func (w *Writes) Kept(t T) {
	t.Helper()
	Within(t, patience, "every acknowledged write is shown", func() error {
		err := w.Check(w.l.ctx)
		if errors.Is(err, errLost) {
			t.Fatalf("%v", err)
		}
		return err
	})
}

// Stop ends the writes.
func (w *Writes) Stop() {
	w.stop()
	w.done.Wait()
}
