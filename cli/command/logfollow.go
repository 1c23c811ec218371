package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
)

const (
	// settle is how long after the end of a log the instance's next state may take to arrive.
	settle = 3 * time.Second
	// transit is how old a line may be when it arrives.
	transit = 500 * time.Millisecond
	// drain is how long the logs of deleted services may take to end.
	drain = 5 * time.Second
	// probeTime limits the question whether the root answers.
	probeTime = 5 * time.Second

	minLogPause = time.Second // before a log that broke is opened again; doubles up to maxLogPause
	maxLogPause = 30 * time.Second
)

// logFollower prints the logs of all instances of some services, also of those that start later.
type logFollower struct {
	c   *cli
	a   *client.Client
	opt client.LogOptions

	under     []string // ids of applications or services
	services  map[api.ServiceID]api.Service
	instances map[api.InstanceID]*followedLog
	listed    map[string]bool // the ids whose services were listed
	began     map[string]bool // the ids whose instances were listed
	logs      sync.WaitGroup

	mu    sync.Mutex // guards the following, and c.Out, so that lines do not mix
	width int        // of the prefix
}

// followed returns the ids of the applications, else of the services, that a reference identifies.
// It returns none for a reference to an instance.
func (c *cli) followed(ctx context.Context, a *client.Client, references []string) (ids []string, err error) {
	apps, _, err := a.Apps(ctx, client.ListOptions{})
	if err != nil {
		return nil, err
	}
	services, _, err := a.Services(ctx, client.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, reference := range references {
		if found, err := appKind.match(c, reference, apps); err == nil {
			ids = append(ids, appKind.ids(found)...)
		} else if found, err := serviceKind.match(c, reference, services); err == nil {
			ids = append(ids, serviceKind.ids(found)...)
		} else if len(references) > 1 {
			return nil, err
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// followLogs prints the logs of all instances of applications or services until these are deleted or
// have nothing left to run, the root does not answer, or ctx ends.
func (c *cli) followLogs(ctx context.Context, a *client.Client, under []string, o client.LogOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	f := &logFollower{c: c, a: a, opt: o, under: under, services: map[api.ServiceID]api.Service{}, instances: map[api.InstanceID]*followedLog{}, listed: map[string]bool{}, began: map[string]bool{}}
	changes, ended := make(chan func()), make(chan error)
	var watches sync.WaitGroup
	defer watches.Wait()
	defer f.logs.Wait()
	defer cancel()
	hand := func(change func()) (bool, error) {
		select {
		case changes <- change:
			return true, nil
		case <-ctx.Done():
			return false, nil
		}
	}
	fail := func(err error) {
		select {
		case ended <- err:
		case <-ctx.Done():
		}
	}
	for _, id := range under {
		watches.Go(func() {
			fail(serviceKind.under(a, id).follow(ctx, func(e seen[api.Service]) (bool, error) { return hand(func() { f.service(id, e) }) }))
		})
		watches.Go(func() {
			fail(instanceKind.under(a, id).follow(ctx, func(e seen[api.Instance]) (bool, error) {
				return hand(func() { f.instance(ctx, id, e, fail) })
			}))
		})
	}
	for {
		select {
		case change := <-changes:
			change()
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		if why := f.over(); why != "" {
			f.finish(cancel)
			c.say("%s", why)
			return nil
		}
	}
}

// over returns why there is nothing left to follow; empty: there is.
func (f *logFollower) over() string {
	if len(f.listed) < len(f.under) || len(f.began) < len(f.under) {
		return ""
	}
	names := make([]string, len(f.under))
	for i, id := range f.under {
		names[i] = f.c.progress().Short(id)
	}
	of := strings.Join(names, ", ")
	if len(f.services) == 0 {
		return of + " was deleted"
	}
	for _, s := range f.services {
		if !s.Spec.OneShot || s.Completed+s.Failed < s.Replicas {
			return ""
		}
	}
	return "all instances of " + of + " have ended"
}

// finish waits until the logs have ended, for a limited time.
func (f *logFollower) finish(cancel func()) {
	for _, l := range f.instances {
		l.end()
	}
	defer time.AfterFunc(drain, cancel).Stop()
	f.logs.Wait()
}

// service notes a change of the services under an id.
func (f *logFollower) service(under string, e seen[api.Service]) {
	switch {
	case e.Whole:
		f.listed[under] = true
		for id := range f.services {
			if within(under, string(id)) {
				delete(f.services, id)
			}
		}
		for _, s := range e.Items {
			f.services[s.ID] = s
		}
	case e.Object == nil:
		delete(f.services, api.ServiceID(e.ID))
	default:
		f.services[e.Object.ID] = *e.Object
	}
}

// within reports whether a service or instance is one of an application or service.
func within(under, id string) bool {
	service := api.ServiceID(id)
	if i, err := api.ParseInstanceID(id); err == nil {
		service = i.Service()
	}
	return string(service) == under || string(service.App()) == under
}

// instance notes a change of the instances under an id. It begins to follow new ones.
func (f *logFollower) instance(ctx context.Context, under string, e seen[api.Instance], fail func(error)) {
	items := e.Items
	switch {
	case e.Whole:
		left := map[api.InstanceID]bool{}
		for _, i := range items {
			left[i.ID] = true
		}
		for id, l := range f.instances {
			if within(under, string(id)) && !left[id] {
				l.end()
				delete(f.instances, id)
			}
		}
	case e.Object == nil:
		if l := f.instances[api.InstanceID(e.ID)]; l != nil {
			l.end()
			delete(f.instances, api.InstanceID(e.ID))
		}
	default:
		items = []api.Instance{*e.Object}
	}
	for _, i := range items {
		l := f.instances[i.ID]
		if l == nil {
			l = &followedLog{f: f, name: f.c.progress().Short(string(i.ID)), changed: make(chan struct{}, 1), early: !f.began[under]}
			f.instances[i.ID] = l
			f.mu.Lock()
			f.width = max(f.width, len(l.name))
			f.mu.Unlock()
			l.set(i)
			f.logs.Go(func() {
				if err := l.run(ctx); err != nil {
					fail(err)
				}
			})
			continue
		}
		l.set(i)
	}
	f.began[under] = f.began[under] || e.Whole
}

// print prints a line of an instance.
func (f *logFollower) print(name string, line []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, _ = fmt.Fprintf(f.c.Out, "%-*s | %s\n", f.width, name, line)
}

// attempt is one run of an instance's workload.
type attempt struct {
	epoch    api.Epoch
	restarts int
}

func attemptOf(i api.Instance) attempt { return attempt{i.Epoch, i.Restarts} }

// followedLog follows the logs of one instance, one attempt after the other.
type followedLog struct {
	f     *logFollower
	name  string
	early bool // it existed when the command began

	changed chan struct{} // signals set and end
	mu      sync.Mutex    // guards the following
	now     api.Instance
	over    bool // no attempt follows
}

func (l *followedLog) set(i api.Instance) { l.change(func() { l.now = i }) }

// end says that no attempt follows. What is left of the last one is still read.
func (l *followedLog) end() { l.change(func() { l.over = true }) }

func (l *followedLog) change(fn func()) {
	l.mu.Lock()
	fn()
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *followedLog) get() (i api.Instance, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now, l.over
}

// wait waits for a change of the instance or, if d is positive, at most for d. It returns false at the
// end of ctx.
func (l *followedLog) wait(ctx context.Context, d time.Duration) bool {
	var timer <-chan time.Time
	if d > 0 {
		timer = time.After(d)
	}
	select {
	case <-l.changed:
	case <-timer:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// run prints the logs of all attempts until the instance is deleted or ctx ends. It returns an error
// that ends the command.
func (l *followedLog) run(ctx context.Context) error {
	var last attempt // whose log was read
	var read time.Time
	whole := false // the log of last was read to its end
	pause := minLogPause
	told := false
	tried := false // to read what is left
	for {
		i, over := l.get()
		switch {
		case ctx.Err() != nil, over && (tried || i.Cluster == "" || whole && attemptOf(i) == last):
			return nil
		case over:
			tried = true
		case i.Cluster == "", !l.early && i.State != api.Running && i.State != api.Completed && i.State != api.Failed, // it has not started
			whole && attemptOf(i) == last && i.State != api.Running: // it has ended
			l.wait(ctx, 0)
			continue
		}
		o := l.f.opt
		switch {
		case attemptOf(i) == last: // the rest of it
			o.Tail, o.Since = -1, time.Since(read)+transit
		case !l.early:
			o.Tail, o.Since = -1, 0
		}
		opened, err := l.read(ctx, i.ID, o, &read)
		if opened {
			l.early, last = false, attemptOf(i)
			pause, told = minLogPause, false
		}
		switch whole = err == nil; {
		case whole:
			read = time.Now()
			l.settled(ctx, last)
			continue
		case ctx.Err() != nil || over:
			return nil
		case errors.Is(err, api.ErrConflict), errors.Is(err, api.ErrNotFound): // it has not started, or nothing is left
			l.early = false
			if i.State != api.Running {
				l.wait(ctx, 0)
				continue
			}
		case errors.Is(err, api.ErrUnavailable), errors.Is(err, api.ErrTimeout), errors.Is(err, api.ErrTooMany):
			if err := l.f.rootAnswers(ctx, i.ID, err); err != nil {
				return err
			}
			if !told {
				told = true
				l.f.c.say("logs of %s: %v; they go on when its node can be reached", l.name, err)
			}
		default:
			return fmt.Errorf("logs of %s: %w", i.ID, err)
		}
		l.wait(ctx, pause)
		pause = min(2*pause, maxLogPause)
	}
}

// settled waits after the end of a log until the root knows of it.
func (l *followedLog) settled(ctx context.Context, ended attempt) {
	until := time.Now().Add(settle)
	for {
		i, over := l.get()
		left := time.Until(until)
		if over || attemptOf(i) != ended || i.State != api.Running || left <= 0 || !l.wait(ctx, left) {
			return
		}
	}
}

// read prints one log until its end. at is set to the time of the last line. opened is true if the node
// answered.
func (l *followedLog) read(ctx context.Context, id api.InstanceID, o client.LogOptions, at *time.Time) (opened bool, err error) {
	body, err := l.f.a.ReadLogs(ctx, id, o)
	if err != nil {
		return false, err
	}
	defer body.Close()
	*at = time.Now()
	return true, prefixed(body, func(line []byte) {
		*at = time.Now()
		l.f.print(l.name, line)
	})
}

// rootAnswers returns an error if the root is the reason for a log's end.
func (f *logFollower) rootAnswers(ctx context.Context, id api.InstanceID, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	_, err := f.a.Service(ctx, id.Service())
	if errors.Is(err, api.ErrUnavailable) || errors.Is(err, api.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("logs of %s: %w; the root does not answer: run the command again with --since when it does", id, cause)
	}
	return nil
}
