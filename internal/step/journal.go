package step

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/treeline-edge/treeline/internal/store"
)

// Journal turns a core's records into documents and counts their versions. One
// step collects the saves of one input; a record that is put twice in a step is
// saved once, where it was put last, unless it is pinned.
type Journal struct {
	versions map[docKey]uint64 // of what is stored, or pending
	at       map[docKey]int    // where it is pending
	pending  []store.Doc
}

type docKey struct{ kind, key string }

// Restored notes a document that was read at start.
func (j *Journal) Restored(d store.Doc) {
	j.init()
	j.versions[docKey{d.Kind, d.Key}] = d.Version
}

// Put saves record as the document kind/key, as JSON.
func (j *Journal) Put(kind, key string, record any) {
	j.add(docKey{kind, key}, encode(kind, key, record))
}

func encode(kind, key string, record any) []byte {
	b, err := json.Marshal(record)
	if err != nil {
		// Records are our own plain structs; one that does not encode is our bug.
		panic(fmt.Sprintf("encode %s %s: %v", kind, key, err))
	}
	return b
}

// Pin keeps what is pending of a record where it is: a later Put of the step saves
// another version after it. It is for what the saves between the two rely on, such as
// that something was freed which another record takes then.
func (j *Journal) Pin(kind, key string) {
	delete(j.at, docKey{kind, key})
}

// Delete removes the document kind/key, if there is one.
func (j *Journal) Delete(kind, key string) {
	k := docKey{kind, key}
	j.init()
	if i, ok := j.at[k]; ok && j.pending[i].Data != nil && j.pending[i].Version == 1 {
		// It was made in this step and never stored. (A key that was deleted and made
		// again within the step keeps its deletion, which is pending before it.)
		j.drop(k, i)
		delete(j.versions, k)
		return
	}
	if j.versions[k] == 0 {
		return
	}
	j.add(k, nil)
	delete(j.versions, k)
	delete(j.at, k)
}

// Take yields the saves since the last Take.
func (j *Journal) Take() []store.Doc {
	docs := slices.DeleteFunc(j.pending, func(d store.Doc) bool { return d.Kind == "" })
	j.pending = nil
	clear(j.at)
	return docs
}

// amend is Put for a record that the step's later ones rely on: where it is
// pending already, it keeps its place before them.
func (j *Journal) amend(kind, key string, record any) {
	if i, ok := j.at[docKey{kind, key}]; ok {
		j.pending[i].Data = encode(kind, key, record)
		return
	}
	j.Put(kind, key, record)
}

func (j *Journal) add(k docKey, data []byte) {
	j.init()
	v := j.versions[k] + 1
	if i, ok := j.at[k]; ok {
		v = j.pending[i].Version
		j.drop(k, i)
	}
	j.versions[k] = v
	j.at[k] = len(j.pending)
	j.pending = append(j.pending, store.Doc{Kind: k.kind, Key: k.key, Version: v, Data: data})
}

// drop leaves a gap, which Take closes.
func (j *Journal) drop(k docKey, i int) {
	j.pending[i] = store.Doc{}
	delete(j.at, k)
}

func (j *Journal) init() {
	if j.versions == nil {
		j.versions, j.at = map[docKey]uint64{}, map[docKey]int{}
	}
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
		j.amend(kind, key, counterRecord{c.reserved})
	}
	return c.last
}

// Raise has the counter go on above n, if it is not there yet.
func (c *Counter) Raise(n uint64, j *Journal, kind, key string) {
	if n <= c.last {
		return
	}
	if c.last = n; c.last >= c.reserved {
		c.reserved = c.last + Block
		j.amend(kind, key, counterRecord{c.reserved})
	}
}

// Last is the number handed out last.
func (c *Counter) Last() uint64 { return c.last }
