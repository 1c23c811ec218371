package snapshot

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"

	"filippo.io/age"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// Reader reads a snapshot.
type Reader struct {
	header Header
	in     io.Reader // the encrypted part
}

// Open reads the header. Errors: ErrInvalid (r has no snapshot, or one of a newer format).
func Open(r io.Reader) (*Reader, error) {
	in := bufio.NewReader(r)
	line := make([]byte, len(magic))
	if _, err := io.ReadFull(in, line); err != nil || string(line) != magic {
		return nil, fmt.Errorf("read the snapshot: it does not begin with %q, so it is not a snapshot of a control plane: %w", strings.TrimSpace(magic), api.ErrInvalid)
	}
	text, err := readLine(in, maxHeader)
	if err != nil {
		return nil, fmt.Errorf("read the snapshot: its header is truncated or larger than %d bytes: %w", maxHeader, api.ErrInvalid)
	}
	h, err := parse(text)
	if err != nil {
		return nil, err
	}
	return &Reader{header: h, in: in}, nil
}

func readLine(in *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for len(line) <= most {
		b, err := in.ReadByte()
		if err != nil {
			return nil, err
		}
		if b == '\n' {
			return line, nil
		}
		line = append(line, b)
	}
	return nil, bufio.ErrTooLong
}

func parse(text []byte) (h Header, err error) {
	var of struct{ Format int }
	if err := json.Unmarshal(text, &of); err != nil {
		return h, fmt.Errorf("read the snapshot: its header is damaged: %w", api.ErrInvalid)
	}
	if of.Format != Format {
		return h, fmt.Errorf("read the snapshot: its format is %d, and this program reads format %d: use the treeline of the release that wrote it, or a newer one: %w", of.Format, Format, api.ErrInvalid)
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return h, fmt.Errorf("read the snapshot: its header is damaged: %w", api.ErrInvalid)
	}
	if h.Documents < 0 || h.Bytes < 0 || h.Size < 0 {
		return h, fmt.Errorf("read the snapshot: its header is damaged: it has a negative size: %w", api.ErrInvalid)
	}
	if KeyFiles(h.Tier) == nil {
		return h, fmt.Errorf("read the snapshot: its tier is %.40q, want %s or %s: %w", h.Tier, Root, Cluster, api.ErrInvalid)
	}
	if h.Tier == Cluster && !api.ValidMachineName(h.Cluster) {
		return h, fmt.Errorf("read the snapshot: the name of its cluster is %.80q, which is not a DNS label: %w", h.Cluster, api.ErrInvalid)
	}
	return h, nil
}

// Header returns the header. Until Content has returned, it is only what the file says.
func (r *Reader) Header() Header { return r.header }

// Intact reads the snapshot to its end, and compares size and SHA-256 of the encrypted part with the header. It needs
// no identity, and proves only that the snapshot is as it was written. Errors: ErrInvalid. It is called once, and
// not with Content.
func (r *Reader) Intact() error {
	in := &measured{in: r.in, sum: sha256.New(), left: r.header.Size}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return fmt.Errorf("read the snapshot: %w", err)
	}
	return r.intact(in)
}

func (r *Reader) intact(in *measured) error {
	if sum := fmt.Sprintf("%x", in.sum.(hash.Hash).Sum(nil)); in.left != 0 || sum != r.header.SHA256 {
		return damaged(errors.New("its size or SHA-256 is not that of its header"))
	}
	if n, _ := r.in.Read(make([]byte, 1)); n > 0 {
		return damaged(errors.New("it goes on after its end"))
	}
	return nil
}

// Content decrypts and checks the snapshot to its end, and calls key with each key file and doc with each document
// on the way, in the order of the snapshot. What it passes on is right only once it returns nil. Errors: those
// of key and doc; ErrForbidden (no identity of a recipient); ErrInvalid (truncated, damaged, or beyond the
// bounds). It is called once.
func (r *Reader) Content(identities []age.Identity, key func(name string, text []byte) error, doc func(Doc) error) error {
	in := &measured{in: r.in, sum: sha256.New(), left: r.header.Size}
	// age reads its header without a bound.
	sealed := bufio.NewReaderSize(in, maxSealed)
	if start, _ := sealed.Peek(maxSealed); !bytes.Contains(start, []byte("\n---")) {
		return damaged(errors.New("it has no header of age"))
	}
	opened, err := age.Decrypt(sealed, identities...)
	var none *age.NoIdentityMatchError
	switch {
	case errors.As(err, &none):
		return fmt.Errorf("decrypt the snapshot: the identity is not one of its recipients (%s): %w", strings.Join(r.header.Recipients, ", "), api.ErrForbidden)
	case err != nil:
		return damaged(err)
	}
	// Errors of the decoders show only what is in the snapshot.
	packed, err := gzip.NewReader(opened)
	if err != nil {
		return damaged(err)
	}
	packed.Multistream(false)
	h := r.header
	unpacked := &measured{in: packed, sum: io.Discard, left: min(h.Bytes, maxBytes) + (min(int64(h.Documents), maxDocs)+16)*perEntry}
	archive := tar.NewReader(unpacked)
	seen := Header{}
	var inner *Header
	for inner == nil {
		e, err := archive.Next()
		if err != nil {
			return damaged(err)
		}
		switch name := e.Name; {
		case e.Typeflag != tar.TypeReg:
			return damaged(fmt.Errorf("entry %.80q is not a file", name))
		case strings.HasPrefix(name, keyPrefix):
			err = r.key(archive, e, &seen, key)
		case strings.HasPrefix(name, docPrefix):
			err = r.doc(archive, e, &seen, doc)
		case name == headerName:
			var text []byte
			if text, err = read(archive, e, maxHeader); err == nil {
				var h Header
				h, err = parse(text)
				inner = &h
			}
		default:
			err = damaged(fmt.Errorf("it has an entry %.80q", name))
		}
		if err != nil {
			return err
		}
	}
	if _, err := archive.Next(); !errors.Is(err, io.EOF) {
		return damaged(errors.Join(err, errors.New("it has entries after its header")))
	}
	// age reports a truncated file at its end only.
	for _, rest := range []io.Reader{unpacked, opened, sealed} {
		if _, err := io.Copy(io.Discard, rest); err != nil {
			return damaged(err)
		}
	}
	if err := r.intact(in); err != nil {
		return err
	}
	return r.check(seen, *inner)
}

// check compares what was read with both headers.
func (r *Reader) check(seen, inner Header) error {
	if !inner.Same(r.header.inner()) {
		return damaged(errors.New("the header in the clear and the encrypted one differ: somebody changed it"))
	}
	if seen.Documents != inner.Documents || seen.Bytes != inner.Bytes || !slices.Equal(seen.Keys, inner.Keys) {
		return damaged(fmt.Errorf("it has %d documents with %d bytes, want %d with %d", seen.Documents, seen.Bytes, inner.Documents, inner.Bytes))
	}
	return nil
}

func (r *Reader) key(in io.Reader, e *tar.Header, seen *Header, fn func(string, []byte) error) error {
	name := strings.TrimPrefix(e.Name, keyPrefix)
	if !slices.Contains(KeyFiles(r.header.Tier), name) || slices.Contains(seen.Keys, name) {
		return damaged(fmt.Errorf("%.80q is not one of the key files of a %s", name, r.header.Tier))
	}
	text, err := read(in, e, maxKeyFile)
	if err != nil {
		return err
	}
	seen.Keys = append(seen.Keys, name)
	return fn(name, text)
}

func (r *Reader) doc(in io.Reader, e *tar.Header, seen *Header, fn func(Doc) error) error {
	d := Doc{Kind: e.PAXRecords[paxKind], Key: e.PAXRecords[paxKey], Again: e.PAXRecords[paxAgain] != ""}
	data, err := read(in, e, store.MaxData)
	if err != nil {
		return err
	}
	if d.Data = data; e.PAXRecords[paxDeleted] != "" {
		if d.Data = nil; len(data) > 0 || !d.Again {
			return damaged(errors.New("it has a deletion of nothing"))
		}
	}
	if err := store.Validate([]store.Doc{{Kind: d.Kind, Key: d.Key, Version: 1, Data: data}}); err != nil {
		return damaged(err)
	}
	seen.Documents++
	seen.Bytes += int64(len(data))
	if seen.Documents > min(r.header.Documents, maxDocs) || seen.Bytes > min(r.header.Bytes, maxBytes) {
		return damaged(fmt.Errorf("it has more than the %d documents and %d bytes of its header", r.header.Documents, r.header.Bytes))
	}
	return fn(d)
}

// read returns the content of an entry of at most most bytes.
func read(in io.Reader, e *tar.Header, most int64) ([]byte, error) {
	if e.Size > most {
		return nil, damaged(fmt.Errorf("entry %.80q has %d bytes, want at most %d", e.Name, e.Size, most))
	}
	var b bytes.Buffer
	if _, err := io.Copy(&b, in); err != nil {
		return nil, damaged(err)
	}
	return append([]byte{}, b.Bytes()...), nil
}

func damaged(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it ends too early")
	}
	return fmt.Errorf("read the snapshot: it is truncated or damaged: %w; nothing was changed: %w", err, api.ErrInvalid)
}

// measured is a reader of which at most left bytes are read.
type measured struct {
	in   io.Reader
	sum  io.Writer
	left int64
}

// Read implements io.Reader.
func (m *measured) Read(p []byte) (int, error) {
	if m.left <= 0 {
		return 0, io.EOF
	}
	n, err := m.in.Read(p[:min(int64(len(p)), m.left)])
	m.left -= int64(n)
	_, _ = m.sum.Write(p[:n]) // hashes do not fail
	return n, err
}
