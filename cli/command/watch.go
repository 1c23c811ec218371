package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
)

// source is a kind of object that can be listed and watched.
type source[T any] struct {
	client *client.Client
	kind   client.Kind
	list   client.ListOptions // Tenant and Under
	id     func(T) string
}

// seen is what a source tells: at first all that there is, then what changes.
type seen[T any] struct {
	Whole  bool // Objects are all that there is
	Items  []T  // with Whole
	Rev    api.Revision
	ID     string
	Object *T // nil: gone
}

// follow lists and then watches, without a gap, until fn wants no more or ctx
// ends. Where changes were missed it lists again.
func (s source[T]) follow(ctx context.Context, fn func(seen[T]) (more bool, err error)) error {
	for {
		page, rev, err := client.List[T](ctx, s.client, string(s.kind), query(s.list))
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

// watch tells what changes after a revision.
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
	return fmt.Errorf("the watch of %s ended: %w", s.kind, api.ErrUnavailable)
}

func query(o client.ListOptions) map[string][]string {
	q := map[string][]string{}
	if o.Tenant != "" {
		q["tenant"] = []string{string(o.Tenant)}
	}
	if o.Under != "" {
		q["under"] = []string{o.Under}
	}
	return q
}

// until follows a source until what there is fulfils cond.
func (s source[T]) until(ctx context.Context, cond func(map[string]T) bool) error {
	all := map[string]T{}
	return s.follow(ctx, func(c seen[T]) (bool, error) {
		switch {
		case c.Whole:
			clear(all)
			for _, o := range c.Items {
				all[s.id(o)] = o
			}
		case c.Object == nil:
			delete(all, c.ID)
		default:
			all[c.ID] = *c.Object
		}
		return !cond(all), nil
	})
}

func instancesOf(a *client.Client, under string) source[api.Instance] {
	return source[api.Instance]{a, client.Instances, client.ListOptions{Under: under}, instanceID}
}
