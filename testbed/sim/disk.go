package sim

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/internal/store"
)

// disk keeps a machine's documents across crashes, with the rules of store.Store.
type disk struct {
	docs map[docName]store.Doc
}

type docName struct{ kind, key string }

func newDisk() *disk { return &disk{docs: map[docName]store.Doc{}} }

func (d *disk) save(doc store.Doc) error {
	name := docName{doc.Kind, doc.Key}
	old, found := d.docs[name]
	switch {
	case doc.Version == old.Version+1:
	case doc.Data == nil && !found:
		return nil
	case found && doc.Version == old.Version && bytes.Equal(doc.Data, old.Data):
		return nil
	default:
		return fmt.Errorf("save %s %s: version %d would overwrite version %d: %w", doc.Kind, doc.Key, doc.Version, old.Version, store.ErrConflict)
	}
	if doc.Data == nil {
		delete(d.docs, name)
		return nil
	}
	doc.Data = bytes.Clone(doc.Data)
	d.docs[name] = doc
	return nil
}

// load returns all documents, in random order.
func (d *disk) load(r *rand.Rand) []store.Doc {
	docs := d.sorted()
	r.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
	return docs
}

func (d *disk) sorted() []store.Doc {
	docs := make([]store.Doc, 0, len(d.docs))
	for _, doc := range d.docs {
		docs = append(docs, doc)
	}
	slices.SortFunc(docs, func(a, b store.Doc) int {
		if c := strings.Compare(a.Kind, b.Kind); c != 0 {
			return c
		}
		return strings.Compare(a.Key, b.Key)
	})
	return docs
}

func (d *disk) wipe() { clear(d.docs) }
