package shared

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/treeline-edge/treeline/api"
)

// The check makes several appends for one position at once, some times over: an engine that looks
// for an entry and writes in two steps accepts two of them soon.
const (
	checkRounds  = 16
	checkWriters = 8
)

// ErrNotAtomic means that an engine has stored two entries at one position. Replicas would lose
// acknowledged writes there.
var ErrNotAtomic = fmt.Errorf("the store is not atomic: %w", api.ErrInvalid)

// Check appends concurrently to a log that is for nothing else, and fails with ErrNotAtomic if the
// engine does not do what the comment of Log.Append says. It cannot prove that an engine is atomic,
// and does not test what happens to acknowledged entries when a server of the engine fails.
func Check(ctx context.Context, scratch Log) error {
	from := rand.Uint64N(1 << 62)
	err := check(ctx, scratch, from)
	var all []uint64
	for position := from; position < from+checkRounds; position++ {
		all = append(all, position)
	}
	if deleted := scratch.Delete(ctx, all...); err == nil {
		err = deleted
	}
	return err
}

func check(ctx context.Context, scratch Log, from uint64) error {
	for position := from; position < from+checkRounds; position++ {
		var won [checkWriters]bool
		var errs [checkWriters]error
		var group sync.WaitGroup
		begin := make(chan struct{})
		for w := range checkWriters {
			group.Go(func() {
				<-begin
				taken, err := scratch.Append(ctx, Entry{Position: position, Epoch: uint64(w + 1)})
				won[w], errs[w] = err == nil && !taken, err
			})
		}
		close(begin)
		group.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		winners, winner := 0, 0
		for w, ok := range won {
			if ok {
				winners, winner = winners+1, w
			}
		}
		if winners != 1 {
			return fmt.Errorf("%w: of %d processes that wrote one document at once, %d were told that they were the first; use MongoDB", ErrNotAtomic, checkWriters, winners)
		}
		e, ok, err := scratch.At(ctx, position)
		if err != nil {
			return err
		}
		if !ok || e.Epoch != uint64(winner+1) {
			return fmt.Errorf("%w: a document that one process has written was replaced by another one or is missing; use MongoDB", ErrNotAtomic)
		}
	}
	return nil
}
