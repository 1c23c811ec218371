package containerd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlotsLimitEachGroupAndTheTotal(t *testing.T) {
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
			t.Fatal("enter a third time in a group of 2: got a slot, want none")
		}
		b1 := enter(t.Context(), "b")
		if b1 == nil {
			t.Fatal("enter another group: got no slot, want one")
		}
		if enter(soon(), "b") != nil {
			t.Fatal("enter a fourth time in total: got a slot, want none")
		}
		waits := make(chan func())
		go func() { waits <- enter(t.Context(), "b") }()
		synctest.Wait()
		a1()
		b2 := <-waits
		if _, err := s.enter(soon(), "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("enter without a free slot: got %v, want DeadlineExceeded", err)
		}
		a2()
		b1()
		b2()
		if len(s.groups) != 0 || len(s.all) != 0 {
			t.Errorf("after all left: got %d groups and %d slots, want none", len(s.groups), len(s.all))
		}
	})
}
