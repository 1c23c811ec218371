package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// verify reads the whole file and returns why it is damaged, or nil. It writes nothing.
//
// bbolt checks only its two meta pages, falls back to the older state if the newer one is damaged,
// panics on damaged pages, and initializes an empty file. Each of these can lose documents. verify
// therefore requires that every reachable page is well-formed and used once, that every document
// matches its checksum, and that all documents match the digest. docs/adr/0082 compares this check
// with bbolt's own.
func verify(file io.ReaderAt, size int64) error {
	_, err := inspect(file, size)
	return err
}

// inspect is verify, and returns what the file contains.
func inspect(file io.ReaderAt, size int64) (Usage, error) {
	f := &boltFile{file: file, size: size, seen: map[uint64]bool{}, usage: Usage{File: size, Kinds: map[string]Kind{}}}
	if err := f.check(); err != nil {
		return Usage{}, err
	}
	f.usage.Used = int64(uint64(len(f.seen)) * f.pageSize)
	return f.usage, nil
}

func (f *boltFile) check() error {
	root, err := f.meta()
	if err != nil {
		return err
	}
	buckets := map[string][]byte{}
	err = f.walk(root, span{}, func(key, value []byte, bucket bool) error {
		if !bucket {
			return fmt.Errorf("an entry %q outside of any bucket", key)
		}
		buckets[string(key)] = bytes.Clone(value)
		return nil
	})
	if err != nil {
		return err
	}
	return f.contents(buckets)
}

// The layout of bbolt's pages, in the byte order of the machine: a header of
// id (8), flags (2), count (2), overflow (4); then the elements of a branch,
// pos (4), ksize (4), page (8), or of a leaf, flags (4), pos (4), ksize (4),
// vsize (4), where pos counts from the element itself.
const (
	pageHeader   = 16
	elementSize  = 16
	branchPage   = 0x01
	leafPage     = 0x02
	leafIsBucket = 0x01
	bucketHeader = 16

	boltMagic   = 0xED0CDAED
	boltVersion = 2
	metaPage    = 0x04
	metaSize    = 64 // including its checksum (8)
	noFreelist  = 1<<64 - 1
)

var order = binary.NativeEndian

type boltFile struct {
	file     io.ReaderAt
	size     int64
	pageSize uint64
	pages    uint64 // number of pages ever used (bbolt's high-water mark)
	seen     map[uint64]bool
	usage    Usage
}

// meta reads both meta pages and returns the root page of the newer one. Both must be valid: a
// commit writes one of them within one sector, so that a crash cannot make it invalid, and the
// older state may lack acknowledged documents.
func (f *boltFile) meta() (root uint64, err error) {
	if f.size == 0 {
		return 0, errors.New("the file is empty")
	}
	var newest, freelist uint64
	at := uint64(0)
	for i := range 2 {
		b, err := f.read(int64(at), pageHeader+metaSize)
		if err != nil {
			return 0, err
		}
		m := b[pageHeader:]
		h := fnv.New64a()
		_, _ = h.Write(m[:metaSize-8])
		switch {
		case order.Uint64(b) != uint64(i) || order.Uint16(b[8:]) != metaPage:
			return 0, fmt.Errorf("meta page %d has a damaged header", i)
		case order.Uint32(m) != boltMagic:
			return 0, fmt.Errorf("meta page %d is not that of a bbolt database", i)
		case order.Uint32(m[4:]) != boltVersion:
			return 0, fmt.Errorf("meta page %d has version %d, not %d", i, order.Uint32(m[4:]), boltVersion)
		case order.Uint64(m[metaSize-8:]) != h.Sum64():
			return 0, fmt.Errorf("meta page %d does not match its checksum", i)
		}
		at = uint64(order.Uint32(m[8:]))
		if i == 1 && at != f.pageSize {
			return 0, errors.New("the meta pages differ in page size")
		}
		f.pageSize = at
		if txid := order.Uint64(m[48:]); i == 0 || txid > newest {
			newest, root, freelist, f.pages = txid, order.Uint64(m[16:]), order.Uint64(m[32:]), order.Uint64(m[40:])
		}
	}
	if freelist != noFreelist {
		return 0, errors.New("the database was not created by Treeline")
	}
	return root, nil
}

func (f *boltFile) read(at int64, n uint64) ([]byte, error) {
	if at < 0 || at > f.size || n > uint64(f.size-at) {
		return nil, fmt.Errorf("the file ends at byte %d, and %d bytes from %d on are missing", f.size, n, at)
	}
	b := make([]byte, n)
	if _, err := f.file.ReadAt(b, at); err != nil {
		return nil, fmt.Errorf("read %d bytes at %d: %w", n, at, err)
	}
	return b, nil
}

// entry is called for each key of a bucket, in order.
type entry func(key, value []byte, bucket bool) error

// walk visits the tree below a page. All its keys must be within keys.
func (f *boltFile) walk(id uint64, keys span, fn entry) error {
	if id < 2 || id >= f.pages {
		return fmt.Errorf("page %d is not among the %d of the file", id, f.pages)
	}
	header, err := f.read(int64(id*f.pageSize), pageHeader)
	if err != nil {
		return err
	}
	overflow := uint64(order.Uint32(header[12:]))
	if order.Uint64(header) != id || id+overflow >= f.pages {
		return fmt.Errorf("page %d has a damaged header", id)
	}
	for i := id; i <= id+overflow; i++ {
		if f.seen[i] {
			return fmt.Errorf("page %d is used twice", i)
		}
		f.seen[i] = true
	}
	b, err := f.read(int64(id*f.pageSize), (overflow+1)*f.pageSize)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("page %d", id)
	switch order.Uint16(b[8:]) {
	case branchPage:
		return f.branch(name, b, keys, fn)
	case leafPage:
		return leaf(name, b, keys, fn)
	}
	return fmt.Errorf("%s is neither branch nor leaf", name)
}

func (f *boltFile) branch(name string, b []byte, keys span, fn entry) error {
	type child struct {
		key  []byte
		page uint64
	}
	var children []child
	for i := range int(order.Uint16(b[10:])) {
		e, ok := element(b, i)
		if !ok {
			return fmt.Errorf("%s is cut short", name)
		}
		key, ok := slice(e, uint64(order.Uint32(e)), uint64(order.Uint32(e[4:])))
		if !ok || !keys.next(key) {
			return fmt.Errorf("%s holds a damaged element", name)
		}
		children = append(children, child{key, order.Uint64(e[8:])})
	}
	if len(children) == 0 {
		return fmt.Errorf("%s is an empty branch", name)
	}
	for i, c := range children {
		below := span{from: c.key, to: keys.to}
		if i+1 < len(children) {
			below.to = children[i+1].key
		}
		if err := f.walk(c.page, below, fn); err != nil {
			return err
		}
	}
	return nil
}

func leaf(name string, b []byte, keys span, fn entry) error {
	for i := range int(order.Uint16(b[10:])) {
		e, ok := element(b, i)
		if !ok {
			return fmt.Errorf("%s is cut short", name)
		}
		flags, pos := order.Uint32(e), uint64(order.Uint32(e[4:]))
		ksize, vsize := uint64(order.Uint32(e[8:])), uint64(order.Uint32(e[12:]))
		key, ok := slice(e, pos, ksize)
		value, ok2 := slice(e, pos+ksize, vsize)
		if !ok || !ok2 || flags&^leafIsBucket != 0 || !keys.next(key) {
			return fmt.Errorf("%s holds a damaged element", name)
		}
		if err := fn(key, value, flags == leafIsBucket); err != nil {
			return err
		}
	}
	return nil
}

// span is the range of keys that a page may still have, from from (inclusive) to to (exclusive;
// empty: no end).
type span struct {
	from, to []byte
	begun    bool
}

// next reports whether key is within s, and removes key and those before it from s.
func (s *span) next(key []byte) bool {
	c := bytes.Compare(key, s.from)
	if len(key) == 0 || c < 0 || (c == 0 && s.begun) || (len(s.to) > 0 && bytes.Compare(key, s.to) >= 0) {
		return false
	}
	s.from, s.begun = key, true
	return true
}

// element returns the page from its element i on.
func element(page []byte, i int) ([]byte, bool) {
	at := pageHeader + i*elementSize
	if at+elementSize > len(page) {
		return nil, false
	}
	return page[at:], true
}

func slice(b []byte, at, n uint64) ([]byte, bool) {
	if at+n > uint64(len(b)) {
		return nil, false
	}
	return b[at : at+n], true
}

// bucket visits the entries of a bucket. Its value is the root page (8) and a sequence (8),
// followed by its only page if the bucket is small.
func (f *boltFile) bucket(name, value []byte, fn entry) error {
	if len(value) < bucketHeader {
		return fmt.Errorf("the bucket %q is damaged", name)
	}
	plain := func(key, value []byte, bucket bool) error {
		if bucket {
			return fmt.Errorf("a bucket %q within the bucket %q", key, name)
		}
		return fn(key, value, bucket)
	}
	if root := order.Uint64(value); root != 0 {
		return f.walk(root, span{}, plain)
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || order.Uint16(inline[8:]) != leafPage {
		return fmt.Errorf("the bucket %q is damaged", name)
	}
	return leaf(fmt.Sprintf("the bucket %q", name), inline, span{}, plain)
}

// contents checks the entries of the buckets, the checksums and the digest.
func (f *boltFile) contents(buckets map[string][]byte) error {
	if len(buckets) != 2 || buckets[string(metaBucket)] == nil || buckets[string(docsBucket)] == nil {
		return errors.New("the database was not created by Treeline")
	}
	meta := map[string][]byte{}
	err := f.bucket(metaBucket, buckets[string(metaBucket)], func(key, value []byte, _ bool) error {
		meta[string(key)] = bytes.Clone(value)
		return nil
	})
	if err != nil {
		return err
	}
	if format := meta[string(formatKey)]; !bytes.Equal(format, formatOne) {
		return fmt.Errorf("the format is %q, want %q", format, formatOne)
	}
	var digest uint64
	err = f.bucket(docsBucket, buckets[string(docsBucket)], func(key, value []byte, _ bool) error {
		d, sum, err := decode(key, value)
		digest += sum
		f.usage.add(d.Kind, len(key)+len(value))
		return err
	})
	if err != nil {
		return err
	}
	return checkDigest(meta[string(digestKey)], digest)
}
