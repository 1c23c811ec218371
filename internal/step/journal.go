package step

import (
	"encoding/json"
	"fmt"

	"github.com/treeline-edge/treeline/internal/store"
)

// Journal turns a core's records into documents and counts their versions. One
// step collects the saves of one input; a record that is put twice in a step is
// saved once, where it was put last.
type Journal struct {
	versions map[docKey]uint64
	pending  []store.Doc
}

type docKey struct{ kind, key string }

// Restored notes a document that was read at start.
func (j *Journal) Restored(d store.Doc) { j.set(docKey{d.Kind, d.Key}, d.Version) }

// Put saves record as the document kind/key, as JSON.
func (j *Journal) Put(kind, key string, record any) {
	b, err := json.Marshal(record)
	if err != nil {
		// Records are our own plain structs; one that does not encode is our bug.
		panic(fmt.Sprintf("encode %s %s: %v", kind, key, err))
	}
	j.add(kind, key, b)
}

// Delete removes the document kind/key, if there is one.
func (j *Journal) Delete(kind, key string) {
	if j.versions[docKey{kind, key}] == 0 {
		return
	}
	j.add(kind, key, nil)
	delete(j.versions, docKey{kind, key})
}

// Take yields the saves since the last Take.
func (j *Journal) Take() []store.Doc {
	docs := j.pending
	j.pending = nil
	return docs
}

func (j *Journal) add(kind, key string, data []byte) {
	k := docKey{kind, key}
	if n := len(j.pending); n > 0 && data != nil {
		if last := &j.pending[n-1]; last.Kind == kind && last.Key == key && last.Data != nil {
			last.Data = data
			return
		}
	}
	v := j.versions[k] + 1
	j.set(k, v)
	j.pending = append(j.pending, store.Doc{Kind: kind, Key: key, Version: v, Data: data})
}

func (j *Journal) set(k docKey, v uint64) {
	if j.versions == nil {
		j.versions = make(map[docKey]uint64)
	}
	j.versions[k] = v
}

// Counter hands out numbers that never repeat, restarts included, and costs a
// save only once in Block numbers: it reserves ahead.
type Counter struct {
	last     uint64
	reserved uint64
}

// Block is how many numbers a Counter reserves at once.
const Block = 1024

type counterRecord struct {
	Reserved uint64 `json:"reserved"`
}

// Restore starts after everything that an earlier life may have handed out.
func (c *Counter) Restore(data []byte) error {
	var r counterRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("read the counter: %w", err)
	}
	c.last, c.reserved = r.Reserved, r.Reserved
	return nil
}

// Next is a number above all earlier ones; the reservation is saved before
// whatever the caller puts after it.
func (c *Counter) Next(j *Journal, kind, key string) uint64 {
	c.last++
	if c.last > c.reserved {
		c.reserved = c.last + Block
		j.Put(kind, key, counterRecord{c.reserved})
	}
	return c.last
}

// Last is the number handed out last.
func (c *Counter) Last() uint64 { return c.last }
