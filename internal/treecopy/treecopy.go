// Package treecopy makes a directory a copy of a directory on another machine, over one stream. It may be
// repeated: only blocks that differ are sent again, which both sides find out by their hashes, never by times
// and sizes.
//
//	from, err := treecopy.Send(ctx, dir, conn, treecopy.Options{})    // on the one machine
//	into, err := treecopy.Receive(ctx, conn, treecopy.Options{}) // on the other one
//	sum, err := treecopy.Relay(ctx, source, target)                   // between them
//
// The stream has frames (package frames). The source first lists its paths, so that the target can delete what it does
// not have. Then it sends an entry for each directory, file and link. After the entry of a file it sends the hashes of its blocks, in groups. The target answers each group
// with the blocks that it needs, and the source sends them while it reads further groups. At the end both have
// a sum over all entries and hashes: because the target has compared each block with its hash, equal sums mean
// equal trees.
//
// Modes, owners, modification times, links, holes, access control lists and the users' attributes of files are kept. Sockets,
// pipes and devices are left out.
package treecopy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/frames"
)

// The kinds of frames. Those from names to end are of the source, the others of the target.
const (
	names    frames.Kind = 1 + iota // paths that the source has, with NUL between them
	namesEnd                        // all were sent
	entry                           // an item
	hashes                          // of up to groupBlocks blocks of the file
	block                           // one that the target needs
	fileEnd                         // the file's size
	end                             // a Sum
	need                            // answers hashes: a bit for each block
	done                            // a Sum; the last frame
	alive                           // the target works on something that takes long
	failed                          // an api.Problem of either side; the last frame
)

// The limits of a copy.
const (
	// MaxEntries is the maximum number of files, directories and links.
	MaxEntries = 1 << 20
	// maxBytes is the maximum sum of the sizes of files, with their holes.
	maxBytes = 1 << 44
	maxPath  = 4096
	maxAttrs = 8 << 10 // bytes of the attributes of one file

	blockSize   = 32 << 10 // a frame
	groupBlocks = 64
	ahead       = 4 // groups that the source has read and the target has not answered
)

const aliveEvery = 10 * time.Second

// Options are the options of one side.
type Options struct {
	// Final says that nothing changes the source meanwhile. Otherwise what disappears is left out.
	Final bool
	// Prepare returns the directory of the target. It may take long.
	Prepare func(context.Context) (dir string, err error)
	// Complete is called when the target's directory is what it should be, before the source knows. Nil: nothing is to be done.
	Complete func() error
}

// Sum is the result of a copy. Both sides have the same Entries and Digest.
type Sum struct {
	Entries int    `json:"entries"`
	Digest  string `json:"digest"`
	Sent    int64  `json:"sent"` // bytes of blocks that the target needed
}

// Same reports whether both sums are of the same tree.
func (s Sum) Same(o Sum) bool { return s.Entries == o.Entries && s.Digest == o.Digest }

// item is the content of an entry.
type item struct {
	Path  []byte `json:"path"` // below the root; "." is the root. Names need not be UTF-8
	Type  string `json:"type"`
	Mode  uint32 `json:"mode,omitempty"`
	UID   int    `json:"uid,omitempty"`
	GID   int    `json:"gid,omitempty"`
	MTime int64  `json:"mtime,omitempty"` // ns
	Link  []byte `json:"link,omitempty"`  // of a symbolic link; of another link, the path of the file
	Attrs []attr `json:"attrs,omitempty"`
}

// attr is an extended attribute.
type attr struct {
	Name  []byte `json:"name"`
	Value []byte `json:"value"`
}

const (
	typeDir     = "dir"
	typeFile    = "file"
	typeLink    = "link" // another name of a file
	typeSymlink = "symlink"
)

type digest = [sha256.Size]byte

// zeros is the hash of a block of zeros.
var zeros = sync.OnceValue(func() digest { return sha256.Sum256(make([]byte, blockSize)) })

// tally sums the frames that describe a tree.
type tally struct {
	hash.Hash
	entries int
}

func newTally() *tally { return &tally{Hash: sha256.New()} }

func (t *tally) add(k frames.Kind, payload []byte) {
	var head [5]byte
	head[0] = byte(k)
	binary.BigEndian.PutUint32(head[1:], uint32(len(payload)))
	t.Write(head[:])
	t.Write(payload)
	if k == entry {
		t.entries++
	}
}

func (t *tally) sum(sent int64) Sum {
	return Sum{Entries: t.entries, Digest: fmt.Sprintf("%x", t.Sum(nil)), Sent: sent}
}

func writeJSON(w *frames.Writer, k frames.Kind, v any) error {
	text, err := json.Marshal(v)
	if err == nil && len(text) > frames.Max {
		err = fmt.Errorf("a frame has %d bytes, want at most %d: %w", len(text), frames.Max, api.ErrInvalid)
	}
	if err != nil {
		return err
	}
	return w.Write(k, text)
}

func readJSON(payload []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(payload))
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("decode a frame: %w: %w", api.ErrInvalid, err)
	}
	return nil
}

// Refuse tells the other side that there will be no copy. It returns err.
func Refuse(conn io.Writer, err error) error { return fail(frames.NewWriter(conn), err) }

// fail tells the other side an error.
func fail(w *frames.Writer, err error) error {
	p := *call.Problem(err)
	p.Detail = strings.ToValidUTF8(p.Detail[:min(len(p.Detail), 1024)], "")
	p.Errors = nil
	_ = writeJSON(w, failed, p)
	return err
}

var errTold = errors.New("the other side failed")

// failure returns the error that the other side has told.
func failure(payload []byte) error {
	return fmt.Errorf("%w: %w", errTold, call.ParseProblem("application/problem+json", 502, payload))
}

func unexpected(k frames.Kind, payload []byte) error {
	if k == failed {
		return failure(payload)
	}
	return fmt.Errorf("frame of kind %d with %d bytes is not expected here: %w", k, len(payload), api.ErrInvalid)
}

// cut makes the end of a stream an error.
func cut(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the stream has ended before the copy was complete: %w: %w", api.ErrUnavailable, err)
	}
	return err
}
