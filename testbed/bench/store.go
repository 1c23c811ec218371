package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
)

const (
	docSize   = 1024
	savesEach = 50 // saves of each writer per sample
	manyWays  = 64
)

// storeSaves measures durable saves of a document of 1 KiB, sequentially and from 64 writers. The
// baseline is bbolt itself with the same bytes.
func storeSaves(r *run) error {
	dir, err := os.MkdirTemp("", "bench-store-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ours, err := embedded.Open(filepath.Join(dir, "ours.db"))
	if err != nil {
		return err
	}
	defer ours.Close()
	raw, err := bolt.Open(filepath.Join(dir, "raw.db"), 0o600, nil)
	if err != nil {
		return err
	}
	defer raw.Close()
	bucket := []byte("app")
	if err := raw.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket(bucket); return err }); err != nil {
		return err
	}
	data := make([]byte, docSize)
	versions := make([]uint64, manyWays)
	save := func(w int) error {
		versions[w]++
		return ours.Save(r.ctx, []store.Doc{{Kind: "app", Key: fmt.Sprint(w), Version: versions[w], Data: data}})
	}
	put := func(tx *bolt.Tx, w int) error { return tx.Bucket(bucket).Put(fmt.Append(nil, w), data) }
	update := func(w int) error { return raw.Update(func(tx *bolt.Tx) error { return put(tx, w) }) }
	batch := func(w int) error { return raw.Batch(func(tx *bolt.Tx) error { return put(tx, w) }) }

	var one, oneRaw, many, manyRaw series
	for range r.n {
		for _, m := range []struct {
			to   *series
			ways int
			fn   func(int) error
		}{{&oneRaw, 1, update}, {&one, 1, save}, {&manyRaw, manyWays, batch}, {&many, manyWays, save}} {
			w := watch("")
			took, err := repeat(r.ctx, m.ways, m.fn)
			if err != nil {
				return err
			}
			if m.ways == 1 {
				m.to.add(ms(took)/savesEach, w.disturbed())
			} else {
				m.to.add(float64(m.ways*savesEach)/took.Seconds(), w.disturbed())
			}
		}
	}
	r.emit(one.record("store.save", "ms").over("bbolt Update", quantile(oneRaw.values, 0.5)))
	r.emit(many.record("store.save-64-writers", "saves/s").over("bbolt Batch", quantile(manyRaw.values, 0.5)))
	return nil
}

// repeat runs fn savesEach times in each of several concurrent goroutines.
func repeat(ctx context.Context, ways int, fn func(way int) error) (time.Duration, error) {
	errs := make([]error, ways)
	var wg sync.WaitGroup
	began := time.Now()
	for way := range ways {
		wg.Go(func() {
			for range savesEach {
				if errs[way] = fn(way); errs[way] != nil || ctx.Err() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return took, ctx.Err()
}
