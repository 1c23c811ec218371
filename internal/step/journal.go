package step

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/treeline-edge/treeline/internal/store"
)

// Journal collects the saves of one step: it encodes records as documents and counts their
// versions. A record that is put twice in a step is saved once, at the position of the last put,
// unless it is pinned.
type Journal struct {
	versions map[docKey]uint64 // of stored and pending documents
	at       map[docKey]int    // index in pending
	pending  []store.Doc
}

type docKey struct{ kind, key string }

// Restored records the version of a document that was read at start.
func (j *Journal) Restored(d store.Doc) {
	j.init()
	j.versions[docKey{d.Kind, d.Key}] = d.Version
}

// Put saves a record as the document kind/key, as JSON.
func (j *Journal) Put(kind, key string, record any) {
	j.add(docKey{kind, key}, encode(kind, key, record))
}

func encode(kind, key string, record any) []byte {
	b, err := json.Marshal(record)
	if err != nil {
		// Records are plain structs: a failure is a bug.
		panic(fmt.Sprintf("encode %s %s: %v", kind, key, err))
	}
	return b
}

// SameJSON reports whether two records have the same JSON.
func SameJSON(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// Pin keeps the pending save of a record at its position: a later Put of the step saves another
// version after it. Use it if later saves depend on this one, for example when it releases an
// address that another record then takes.
func (j *Journal) Pin(kind, key string) {
	delete(j.at, docKey{kind, key})
}

// Delete removes the document kind/key, if it exists.
func (j *Journal) Delete(kind, key string) {
	k := docKey{kind, key}
	j.init()
	if i, ok := j.at[k]; ok && j.pending[i].Data != nil && j.pending[i].Version == 1 {
		// The document was made in this step and never stored. (The pending deletion of an earlier
		// document with this key stays.)
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

// Take returns the saves since the last Take.
func (j *Journal) Take() []store.Doc {
	docs := slices.DeleteFunc(j.pending, func(d store.Doc) bool { return d.Kind == "" })
	j.pending = nil
	clear(j.at)
	return docs
}

// amend is Put, but a pending save keeps its position, because later saves of the step depend on
// it.
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

// drop leaves a gap that Take closes.
func (j *Journal) drop(k docKey, i int) {
	j.pending[i] = store.Doc{}
	delete(j.at, k)
}

func (j *Journal) init() {
	if j.versions == nil {
		j.versions, j.at = map[docKey]uint64{}, map[docKey]int{}
	}
}

// Counter returns increasing numbers that never repeat, not even after a restart. It saves once
// per Block numbers.
type Counter struct {
	last     uint64
	reserved uint64
}

// Block is how many numbers a Counter reserves at once.
const Block = 1024

type counterRecord struct {
	Reserved uint64 `json:"reserved"`
}

// Restore starts after all numbers that the process may have returned before a restart.
func (c *Counter) Restore(data []byte) error {
	var r counterRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("read the counter: %w", err)
	}
	c.last, c.reserved = r.Reserved, r.Reserved
	return nil
}

// Used returns a number up to which all were returned before the step that saved the counter, or by that step. A copy
// of its documents has everything with these numbers.
func Used(counter []byte) (uint64, error) {
	var c Counter
	err := c.Restore(counter)
	return max(c.reserved, Block+1) - Block - 1, err
}

// Next returns a number above all earlier ones. Its reservation is saved before the caller's later
// puts.
func (c *Counter) Next(j *Journal, kind, key string) uint64 {
	c.Raise(c.last+1, j, kind, key)
	return c.last
}

// Raise makes Next return numbers above n.
func (c *Counter) Raise(n uint64, j *Journal, kind, key string) {
	if c.last = max(c.last, n); c.last > c.reserved {
		c.reserved = c.last + Block
		j.amend(kind, key, counterRecord{c.reserved})
	}
}

// Last returns the number that was returned last, or the last reserved number after Restore.
func (c *Counter) Last() uint64 { return c.last }
