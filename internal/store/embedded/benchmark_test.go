package embedded

import (
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/treeline-edge/treeline/internal/store"
)

// BenchmarkSave measures one durable Save of a document of 1 KiB.
func BenchmarkSave(b *testing.B) {
	for _, ways := range []int{1, 64} {
		b.Run(fmt.Sprintf("%d-way", ways), func(b *testing.B) {
			s := mustOpen(b, filepath.Join(b.TempDir(), "store.db"))
			data := make([]byte, 1024)
			var writer atomic.Int64
			b.SetParallelism(max(1, ways/runtime.GOMAXPROCS(0)))
			if ways == 1 {
				for i := range b.N {
					save(b, s, "one", uint64(i+1), data)
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					key := fmt.Sprint(writer.Add(1))
					for v := uint64(1); pb.Next(); v++ {
						save(b, s, key, v, data)
					}
				})
			}
			b.StopTimer()
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func save(b *testing.B, s *Store, key string, version uint64, data []byte) {
	if err := s.Save(b.Context(), []store.Doc{{Kind: "app", Key: key, Version: version, Data: data}}); err != nil {
		b.Error(err)
	}
}

// BenchmarkOpenAndLoad reads 10,000 documents of 1 KiB.
func BenchmarkOpenAndLoad(b *testing.B) {
	path := filepath.Join(b.TempDir(), "store.db")
	s := mustOpen(b, path)
	docs := make([]store.Doc, 10_000)
	for i := range docs {
		docs[i] = store.Doc{Kind: "app", Key: fmt.Sprint(i), Version: 1, Data: make([]byte, 1024)}
	}
	if err := s.Save(b.Context(), docs); err != nil {
		b.Fatal(err)
	}
	_ = s.Close()
	for b.Loop() {
		s := mustOpen(b, path)
		if loaded, err := store.Load(b.Context(), s); err != nil || len(loaded) != len(docs) {
			b.Fatal(len(loaded), err)
		}
		_ = s.Close()
	}
}
