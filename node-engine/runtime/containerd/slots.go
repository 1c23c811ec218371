package containerd

import (
	"context"
	"sync"
)

// Limits on concurrent stops and creations of tasks, per shim and in total. A shim of containerd
// 1.6 stalls when more than 32 of its processes end while it waits for a runc: it then needs a second
// for each further one. A stop ends up to three processes: its container and two runcs.
const (
	stopsPerShim = 4
	stopsInTotal = 16

	// If two tasks are created while the socket of an earlier shim exists, both remove it. Then one of
	// them fails, or both start a shim and one of the shims stays without containers.
	startsPerShim = 1
	startsInTotal = 64
)

// slots limits concurrent operations per group and in total. It is safe for concurrent use.
type slots struct {
	all      chan struct{}
	perGroup int

	mu     sync.Mutex // guards groups
	groups map[string]*slotGroup
}

// slotGroup exists while a caller has or waits for a slot of the group.
type slotGroup struct {
	slots chan struct{}
	users int
}

func newSlots(group, all int) *slots {
	return &slots{all: make(chan struct{}, all), perGroup: group, groups: map[string]*slotGroup{}}
}

// enter waits for a slot of the group, until ctx ends. The caller releases it by calling leave
// once.
func (s *slots) enter(ctx context.Context, name string) (leave func(), err error) {
	s.mu.Lock()
	g := s.groups[name]
	if g == nil {
		g = &slotGroup{slots: make(chan struct{}, s.perGroup)}
		s.groups[name] = g
	}
	g.users++
	s.mu.Unlock()
	out := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if g.users--; g.users == 0 {
			delete(s.groups, name)
		}
	}
	// The group's slot first: a caller that waits for it must not occupy a slot in total.
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		out()
		return nil, context.Cause(ctx)
	}
	select {
	case s.all <- struct{}{}:
	case <-ctx.Done():
		<-g.slots
		out()
		return nil, context.Cause(ctx)
	}
	return func() {
		<-s.all
		<-g.slots
		out()
	}, nil
}
