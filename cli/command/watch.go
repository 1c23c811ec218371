package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/follow"
)

// source lists and watches the objects of a kind that a filter selects.
type source[T any] struct {
	resource[T]
	client *client.Client
	list   client.ListOptions // only Tenant and Under are used
}

// seen is a report of a source: first all objects, then single changes.
type seen[T any] struct {
	Whole  bool // Items are all objects
	Items  []T  // set with Whole
	Rev    api.Revision
	ID     string
	Object *T // nil: deleted
}

// follow lists objects and then watches them without a gap, until fn returns false or ctx is done.
// If the root no longer keeps the changes, it lists the objects again.
func (s source[T]) follow(ctx context.Context, fn func(seen[T]) (more bool, err error)) error {
	for {
		page, rev, err := client.List[T](ctx, s.client, string(s.kind), s.list)
		if err != nil {
			return err
		}
		if more, err := fn(seen[T]{Whole: true, Items: page, Rev: rev}); err != nil || !more {
			return err
		}
		err = s.watch(ctx, rev, fn)
		if !errors.Is(err, api.ErrGone) {
			return err
		}
	}
}

func (s source[T]) watch(ctx context.Context, since api.Revision, fn func(seen[T]) (more bool, err error)) error {
	o := client.WatchOptions{Since: since, Tenant: s.list.Tenant, Under: s.list.Under}
	for change, err := range client.Watch[T](ctx, s.client, s.kind, o) {
		if err != nil {
			return err
		}
		if more, err := fn(seen[T]{ID: change.ID, Object: change.Object, Rev: change.Revision}); err != nil || !more {
			return err
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("watch %s: stream ended: %w", s.kind, api.ErrUnavailable)
}

// untilGone waits until a source has no objects.
func (s source[T]) untilGone(ctx context.Context) error {
	all := map[string]bool{}
	return s.follow(ctx, func(c seen[T]) (bool, error) {
		switch {
		case c.Whole:
			clear(all)
			for _, id := range s.ids(c.Items) {
				all[id] = true
			}
		case c.Object == nil:
			delete(all, c.ID)
		default:
			all[c.ID] = true
		}
		return len(all) > 0, nil
	})
}

// post passes a change to the goroutine of track. It returns false if track has ended.
type post func(change func()) bool

// track updates p with the services and instances under a reference, and calls done after each
// change until it returns true or an error. others run concurrently. All of them have ended when
// track returns.
func track(ctx context.Context, a *client.Client, under string, p *follow.Progress, done func() (bool, error), others ...func(context.Context, post) error) error {
	ctx, cancel := context.WithCancel(ctx)
	changes := make(chan func())
	hand := func(change func()) bool {
		select {
		case changes <- change:
			return true
		case <-ctx.Done():
			return false
		}
	}
	var services, instances bool // listed
	followers := append([]func(context.Context, post) error{
		func(ctx context.Context, hand post) error {
			of := under
			if id, err := api.ParseInstanceID(under); err == nil {
				of = string(id.Service())
			}
			return serviceKind.under(a, of).follow(ctx, func(e seen[api.Service]) (bool, error) {
				return hand(func() {
					switch {
					case e.Whole:
						p.SetServices(e.Items)
						services = true
					case e.Object == nil:
						p.DeleteService(api.ServiceID(e.ID))
					default:
						p.SetService(*e.Object)
					}
				}), nil
			})
		},
		func(ctx context.Context, hand post) error {
			return instanceKind.under(a, under).follow(ctx, func(e seen[api.Instance]) (bool, error) {
				return hand(func() {
					switch {
					case e.Whole:
						p.SetInstances(e.Items)
						instances = true
					case e.Object == nil:
						p.DeleteInstance(api.InstanceID(e.ID))
					default:
						p.SetInstance(*e.Object)
					}
				}), nil
			})
		},
	}, others...)
	ended := make(chan error, len(followers))
	for _, f := range followers {
		go func() { ended <- f(ctx, hand) }()
	}
	running := len(followers)
	defer func() {
		cancel()
		for range running {
			<-ended
		}
	}()
	for {
		select {
		case change := <-changes:
			change()
			if !services || !instances {
				continue
			}
			if ok, err := done(); ok || err != nil {
				return err
			}
		case err := <-ended:
			running--
			if err == nil {
				err = context.Cause(ctx)
			}
			return err
		}
	}
}
