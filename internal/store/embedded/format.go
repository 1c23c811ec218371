package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"strings"

	"github.com/treeline-edge/treeline/internal/store"
)

// The file is a bbolt database with two buckets. "docs" holds the documents
//
//	kind 0x00 key → version (8) checksum (8) data
//
// and "treeline" the format and the digest, which is the sum of all checksums. The checksum
// detects a changed document, the digest a missing or duplicate one.
var (
	metaBucket = []byte("treeline")
	docsBucket = []byte("docs")
	formatKey  = []byte("format")
	digestKey  = []byte("digest")
	formatOne  = []byte("treeline store 1")
)

const headerSize = 16

var crcTable = crc64.MakeTable(crc64.ECMA)

func docKey(d store.Doc) []byte {
	return []byte(d.Kind + "\x00" + d.Key)
}

func checksum(key []byte, version uint64, data []byte) uint64 {
	sum := crc64.Update(0, crcTable, key)
	sum = crc64.Update(sum, crcTable, binary.BigEndian.AppendUint64([]byte{0}, version))
	return crc64.Update(sum, crcTable, data)
}

// encode returns the value for key and its checksum.
func encode(key []byte, d store.Doc) (value []byte, sum uint64) {
	sum = checksum(key, d.Version, d.Data)
	value = make([]byte, 0, headerSize+len(d.Data))
	value = binary.BigEndian.AppendUint64(value, d.Version)
	value = binary.BigEndian.AppendUint64(value, sum)
	return append(value, d.Data...), sum
}

// decode returns the document under key and its checksum. Its data is part of value.
func decode(key, value []byte) (d store.Doc, sum uint64, err error) {
	kind, name, ok := strings.Cut(string(key), "\x00")
	if !ok || len(value) < headerSize {
		return store.Doc{}, 0, fmt.Errorf("the entry %q is not a document", key)
	}
	d = store.Doc{Kind: kind, Key: name, Version: binary.BigEndian.Uint64(value), Data: value[headerSize:]}
	sum = binary.BigEndian.Uint64(value[8:])
	if sum != checksum(key, d.Version, d.Data) {
		return store.Doc{}, 0, fmt.Errorf("the document %s %q does not match its checksum", kind, name)
	}
	return d, sum, nil
}

func encodeDigest(digest uint64) []byte {
	return binary.BigEndian.AppendUint64(nil, digest)
}

var errDigest = errors.New("documents are missing or duplicate: the digest does not match")

func checkDigest(value []byte, sum uint64) error {
	if len(value) != 8 || binary.BigEndian.Uint64(value) != sum {
		return errDigest
	}
	return nil
}
