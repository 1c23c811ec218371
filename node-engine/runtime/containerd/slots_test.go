package containerd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlotsBoundEachGroupAndAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(2, 3)
		enter := func(ctx context.Context, group string) func() {
			leave, err := s.enter(ctx, group)
			if err != nil {
				return nil
			}
			return leave
		}
		soon := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			t.Cleanup(cancel)
			return ctx
		}
		a1, a2 := enter(t.Context(), "a"), enter(t.Context(), "a")
		if enter(soon(), "a") != nil {
			t.Fatal("a third slot of one group was given")
		}
		b1 := enter(t.Context(), "b")
		if b1 == nil {
			t.Fatal("a caller that waits for a group took a slot from another group")
		}
		if enter(soon(), "b") != nil {
			t.Fatal("a fourth slot of all was given")
		}
		waits := make(chan func())
		go func() { waits <- enter(t.Context(), "b") }()
		synctest.Wait()
		a1()
		b2 := <-waits
		if _, err := s.enter(soon(), "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no slot in time: %v", err)
		}
		a2()
		b1()
		b2()
		if len(s.groups) != 0 || len(s.all) != 0 {
			t.Errorf("%d groups and %d slots are left", len(s.groups), len(s.all))
		}
	})
}
