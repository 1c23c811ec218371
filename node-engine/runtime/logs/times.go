package logs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	timesDir = "times" // a directory of its own, because that of the logs is watched
	// timesInterval is the least time between two notes.
	timesInterval = time.Second
	// maxTimes bounds the notes about one file. Beyond it every second one is dropped.
	maxTimes = 8192
	noteSize = 16
)

func timesOf(name string) string { return timesDir + "/" + name }

// note says that the file had this size when it was written last, at that time.
type note struct {
	size int64
	at   int64 // Unix time in milliseconds
}

// times are the notes about one file, in order.
type times []note

// of returns when the byte at an offset was written: at the first note that contains it, or at last if
// there is none.
func (t times) of(offset int64, last time.Time) time.Time {
	i := sort.Search(len(t), func(i int) bool { return t[i].size > offset })
	if i < len(t) {
		return time.UnixMilli(t[i].at)
	}
	if last.IsZero() && len(t) > 0 {
		return time.UnixMilli(t[len(t)-1].at)
	}
	return last
}

// before returns an offset before which everything was written before at.
func (t times) before(at time.Time) (offset int64) {
	i := sort.Search(len(t), func(i int) bool { return t[i].at >= at.UnixMilli() })
	if i == 0 {
		return 0
	}
	return t[i-1].size
}

// ends reports whether the whole file was written before at, as far as the notes say.
func (t times) ends(at time.Time) bool {
	return len(t) > 0 && t[len(t)-1].at < at.UnixMilli()
}

// times reads the notes about a file. Without notes lines have the time of the last change.
func (d *Dir) times(name string) times {
	b, err := d.root.ReadFile(timesOf(name))
	if err != nil {
		return nil
	}
	var out times
	for ; len(b) >= noteSize; b = b[noteSize:] {
		n := note{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))}
		if k := len(out); k > 0 && (n.size < out[k-1].size || n.at < out[k-1].at) {
			out = out[:0] // the clock was set, or the file was truncated by somebody else
		}
		out = append(out, n)
	}
	return out
}

func (d *Dir) writeTimes(name string, t times) error {
	b := make([]byte, 0, len(t)*noteSize)
	for _, n := range t {
		b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, uint64(n.size)), uint64(n.at))
	}
	return d.root.WriteFile(timesOf(name), b, 0o600)
}

// watch begins to note when logs grow, until the directory is closed. It does nothing while no
// workload writes.
func (d *Dir) watch() error {
	if err := d.root.Mkdir(timesDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	w, err := fsnotify.NewBufferedWatcher(64)
	if err != nil {
		return fmt.Errorf("watch the logs: %w", err)
	}
	if err := w.Add(d.path); err != nil {
		return errors.Join(fmt.Errorf("watch the logs: %w", err), w.Close())
	}
	sizes := map[string]int64{}
	d.note(sizes)
	d.waits.Go(func() {
		defer w.Close()
		for {
			select {
			case <-w.Events:
			case <-w.Errors: // too many events at once
			case <-d.ctx.Done():
				return
			}
			d.note(sizes)
			select {
			case <-time.After(timesInterval):
			case <-d.ctx.Done():
				return
			}
			for range cap(w.Events) { // what they say was noted, or is noted with the next one
				select {
				case <-w.Events:
				default:
				}
			}
			d.note(sizes)
		}
	})
	return nil
}

// note notes the sizes of the logs that have grown. sizes has those that were noted before.
func (d *Dir) note(sizes map[string]int64) {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return
	}
	seen := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		seen[name] = true
		info, err := e.Info()
		if err != nil || info.Size() == sizes[name] {
			continue
		}
		if d.append(name, note{info.Size(), info.ModTime().UnixMilli()}) == nil {
			sizes[name] = info.Size()
		}
	}
	for name := range sizes {
		if !seen[name] {
			delete(sizes, name)
		}
	}
}

// append adds a note about a file. A file that has shrunk was truncated, or is a new one.
func (d *Dir) append(name string, n note) error {
	info, err := d.root.Stat(timesOf(name))
	if err == nil && info.Size() >= maxTimes*noteSize {
		all := d.times(name)
		thin := all[:0]
		for i := 1; i < len(all); i += 2 {
			thin = append(thin, all[i])
		}
		if err := d.writeTimes(name, thin); err != nil {
			return err
		}
	}
	f, err := d.root.OpenFile(timesOf(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(n.size))
	_, err = f.Write(binary.BigEndian.AppendUint64(b, uint64(n.at)))
	return errors.Join(err, f.Close())
}

// moveTimes moves the notes about a log to its old part, of which cut bytes are dropped.
func (d *Dir) moveTimes(id string, cut int64) error {
	var moved times
	for _, n := range d.times(id + suffix) {
		if n.size > cut {
			moved = append(moved, note{n.size - cut, n.at})
		}
	}
	return errors.Join(d.writeTimes(id+oldSuffix, moved), d.remove(timesOf(id+suffix)))
}

// stamped begins each line with its time.
type stamped struct {
	*reader
	start bool   // the next byte begins a line
	buf   []byte // what was not returned yet
	raw   [8 << 10]byte
}

// Read implements io.Reader.
func (s *stamped) Read(p []byte) (int, error) {
	for len(s.buf) == 0 {
		n, err := s.reader.Read(s.raw[:])
		if n == 0 && err != nil {
			return 0, err
		}
		for i, b := range s.raw[:n] {
			if s.start {
				s.buf = s.reader.line(int64(i)).UTC().Truncate(time.Second).AppendFormat(s.buf, time.RFC3339)
				s.buf = append(s.buf, ' ')
			}
			s.buf = append(s.buf, b)
			s.start = b == '\n'
		}
	}
	n := copy(p, s.buf)
	s.buf = append(s.buf[:0], s.buf[n:]...)
	return n, nil
}
