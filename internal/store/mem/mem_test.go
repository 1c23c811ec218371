package mem_test

import (
	"context"
	"testing"

	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Place {
		// A reopened place has the documents of the last store, as after a crash.
		var last *mem.Store
		return func(*testing.T) store.Store {
			if last == nil {
				last = mem.New()
			} else {
				last = mem.New(last.Docs()...)
			}
			return last
		}
	})
}

func TestDocsIsACopy(t *testing.T) {
	s := mem.New()
	if err := s.Save(context.Background(), []store.Doc{{Kind: "app", Key: "a", Version: 1, Data: []byte("one")}}); err != nil {
		t.Fatal(err)
	}
	s.Docs()[0].Data[0] = 'X'
	if got := string(s.Docs()[0].Data); got != "one" {
		t.Errorf("the store now holds %q, want 'one'", got)
	}
}
