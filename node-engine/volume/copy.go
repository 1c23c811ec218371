package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/durable"
	"github.com/treeline-edge/treeline/internal/treecopy"
	"github.com/treeline-edge/treeline/internal/wire"
)

// A volume moves to another node in two passes of package treecopy. In the first one a workload may write to it. In the
// last one no placement has it at its source, and from then on the source gives it to later placements only. The
// target keeps what it receives as a volume of another type, which no placement gets, and makes it the volume when
// the last pass is complete. The source deletes the volume when its cluster says so.

// incomingType is the type of the volumes that are being received. Their Epoch is that of the source's placement.
const incomingType = "incoming"

// incomingLife is how long an incoming volume is kept without a copy to it. Its cluster discards it before, usually.
const incomingLife = 24 * time.Hour

// sending is a first pass, during which the placement may release the volume.
type sending struct {
	stop  context.CancelCauseFunc
	ended chan struct{}
}

var errReleased = fmt.Errorf("its instance has ended: %w", api.ErrConflict)

// Send copies a local volume of a placement to the Receive at the other end of conn. The end of ctx does not interrupt a
// read or write of conn; abort is called to do so. With final, no placement may have the volume; afterwards those up to k do
// not get it any more. Errors: ErrNotFound, ErrConflict (a placement has it, or a later one had it), ErrTooMany.
func (m *Manager) Send(ctx context.Context, k wire.Key, name string, final bool, conn io.ReadWriter, abort func(error)) (treecopy.Sum, error) {
	sum, err := m.send(ctx, k, name, final, conn, abort)
	if err != nil {
		err = fmt.Errorf("send volume %s: %w", k.Instance.Volume(name), err)
	}
	return sum, err
}

func (m *Manager) send(ctx context.Context, k wire.Key, name string, final bool, conn io.ReadWriter, abort func(error)) (sum treecopy.Sum, err error) {
	v, err := m.existing(k.Instance.Volume(name))
	if err != nil {
		return sum, treecopy.Refuse(conn, err)
	}
	if v.Used > k.Epoch {
		defer v.busy.Unlock()
		return sum, treecopy.Refuse(conn, fmt.Errorf("the later placement %s had it: %w", v.Used, api.ErrConflict))
	}
	if final {
		defer v.busy.Unlock()
		return m.sendFinal(ctx, v, k, conn)
	}
	place, err := m.copies.Take(time.Now(), []string{string(v.tenant)}, nil)
	if err != nil {
		v.busy.Unlock()
		return sum, treecopy.Refuse(conn, err)
	}
	defer place.Release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	mounted := v.Held
	s := &sending{stop: cancel, ended: make(chan struct{})}
	if err = attach(v.dir); err == nil {
		err = m.beginSending(v, s)
	}
	v.busy.Unlock() // the placement can release it meanwhile
	if err != nil {
		return sum, treecopy.Refuse(conn, err)
	}
	defer context.AfterFunc(ctx, func() { abort(context.Cause(ctx)) })()
	sum, err = treecopy.Send(ctx, filepath.Join(v.dir, mountDir, dataDir), conn, treecopy.Options{})
	m.mu.Lock()
	v.sending = nil
	m.mu.Unlock()
	close(s.ended)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if !mounted {
		v.busy.Lock()
		defer v.busy.Unlock()
		if !v.Held && v.Instance != "" {
			err = errors.Join(err, detach(v.dir))
		}
	}
	return sum, err
}

func (m *Manager) beginSending(v *volume, s *sending) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.sending != nil {
		return fmt.Errorf("it is being sent already: %w", api.ErrConflict)
	}
	v.sending = s
	return nil
}

// endSending ends a first pass, which keeps the volume from being unmounted. v is locked.
func (m *Manager) endSending(v *volume) {
	m.mu.Lock()
	s := v.sending
	m.mu.Unlock()
	if s != nil {
		s.stop(errReleased)
		<-s.ended
	}
}

// sendFinal keeps the volume locked: a placement that should have it again waits until the cluster has ended the stream.
func (m *Manager) sendFinal(ctx context.Context, v *volume, k wire.Key, conn io.ReadWriter) (sum treecopy.Sum, err error) {
	if v.Held {
		return sum, treecopy.Refuse(conn, fmt.Errorf("the placement %s still has it: %w", v.Epoch, api.ErrConflict))
	}
	m.endSending(v)
	if v.Moved < k.Epoch {
		next := v.record
		next.Moved = k.Epoch
		err = m.save(v, next)
	}
	if err == nil {
		err = attach(v.dir)
	}
	if err != nil {
		return sum, treecopy.Refuse(conn, err)
	}
	defer func() { err = errors.Join(err, detach(v.dir)) }()
	return treecopy.Send(ctx, filepath.Join(v.dir, mountDir, dataDir), conn, treecopy.Options{Final: true})
}

// Receive makes a copy of a volume that a placement on another node had, from the Send at the other end of conn. prepare, if not
// nil, is called before. After a final copy the node has the volume, for later placements. Errors: ErrConflict (a placement
// here has it, or had it later), ErrInvalid (the source breaks the rules), ErrFull, ErrTooMany.
func (m *Manager) Receive(ctx context.Context, k wire.Key, name string, sizeMB int64, final bool, conn io.ReadWriter, prepare func(context.Context) error) (treecopy.Sum, error) {
	sum, err := m.receive(ctx, k, name, sizeMB, final, conn, prepare)
	if err != nil {
		err = fmt.Errorf("receive volume %s: %w", k.Instance.Volume(name), full(err))
	}
	return sum, err
}

func (m *Manager) receive(ctx context.Context, k wire.Key, name string, sizeMB int64, final bool, conn io.ReadWriter, prepare func(context.Context) error) (sum treecopy.Sum, err error) {
	if !final {
		place, err := m.copies.Take(time.Now(), []string{string(k.Instance.Tenant().Top())}, nil)
		if err != nil {
			return sum, treecopy.Refuse(conn, err)
		}
		defer place.Release()
	}
	v, err := m.takeIncoming(k, name, final)
	if err != nil {
		return sum, treecopy.Refuse(conn, err)
	}
	defer v.busy.Unlock()
	var attached bool
	sum, err = treecopy.Receive(ctx, conn, treecopy.Options{
		Prepare: func(ctx context.Context) (string, error) {
			if err := m.prepareIncoming(ctx, v, k, name, sizeMB, prepare); err != nil {
				return "", err
			}
			attached = true
			return filepath.Join(v.dir, mountDir, dataDir), nil
		},
		Complete: func() error {
			if !final {
				return nil
			}
			if err := detach(v.dir); err != nil {
				return err
			}
			return m.seal(v, k, name)
		},
	})
	if attached && v.Instance != "" {
		err = errors.Join(err, detach(v.dir))
	}
	if v.Instance == "" { // it was not created, or is the volume now
		m.forget(v)
	}
	return sum, err
}

// takeIncoming returns the volume that receives a copy, locked: the local one, if a last pass was complete and is repeated.
func (m *Manager) takeIncoming(k wire.Key, name string, final bool) (*volume, error) {
	own, err := m.existing(k.Instance.Volume(name))
	switch {
	case err == nil && own.Held, err == nil && own.Used > k.Epoch:
		defer own.busy.Unlock()
		return nil, fmt.Errorf("the placement %s on this node had it: %w", max(own.Epoch, own.Used), api.ErrConflict)
	case err == nil && own.Used == k.Epoch && own.Moved == 0 && final:
		return own, nil
	case err == nil && own.Used == k.Epoch:
		defer own.busy.Unlock()
		return nil, fmt.Errorf("this node has it already: %w", api.ErrConflict)
	case err == nil:
		own.busy.Unlock() // an earlier copy, which is replaced
	case !errors.Is(err, api.ErrNotFound):
		return nil, err
	}
	return m.take(record{Type: incomingType, Instance: k.Instance, Name: name, Epoch: k.Epoch})
}

func (m *Manager) prepareIncoming(ctx context.Context, v *volume, k wire.Key, name string, sizeMB int64, prepare func(context.Context) error) error {
	if prepare != nil {
		if err := prepare(ctx); err != nil {
			return err
		}
	}
	want := record{Type: incomingType, Instance: k.Instance, Name: name, SizeMB: sizeMB, Epoch: k.Epoch}
	switch {
	case v.Instance == "":
		if err := m.leaves(); err != nil {
			return err
		}
		if err := m.create(ctx, v, want); err != nil {
			return err
		}
	case v.SizeMB != sizeMB:
		return fmt.Errorf("its size is %d MiB, not %d MiB: %w", v.SizeMB, sizeMB, api.ErrConflict)
	}
	return attach(v.dir)
}

// seal makes an incoming volume the local one. It replaces an earlier copy of the volume.
func (m *Manager) seal(v *volume, k wire.Key, name string) error {
	if v.Type == api.VolumeLocal {
		return nil
	}
	next := v.record
	next.Type, next.Used, next.Held = api.VolumeLocal, k.Epoch, false
	own, err := m.take(next)
	if err != nil {
		return err
	}
	switch {
	case own.Instance == "":
	case own.Held || own.Used >= k.Epoch:
		own.busy.Unlock()
		return fmt.Errorf("the placement %s on this node had it: %w", max(own.Epoch, own.Used), api.ErrConflict)
	default:
		err := detach(own.dir)
		if err == nil {
			err = m.delete(own)
		}
		own.busy.Unlock()
		if err != nil {
			return err
		}
		if own, err = m.take(next); err != nil {
			return err
		}
	}
	defer own.busy.Unlock()
	if err := durable.WriteJSON(v.dir, recordFile, next); err != nil { // from here on, Open completes it
		m.forget(own)
		return err
	}
	if err := os.Rename(v.dir, own.dir); err != nil {
		m.forget(own)
		return err
	}
	m.set(own, next)
	m.forget(v)
	return durable.SyncDir(m.dir)
}

// Discard deletes what a move has left on this node: copies that were not completed, a completed one that no placement
// here has used, or the volume that was sent in a last pass. k is the placement that had the volume at the source. changed
// reports whether List has changed. It fails with ErrConflict while a placement has the volume.
func (m *Manager) Discard(k wire.Key, name string) (changed bool, err error) {
	for _, r := range m.all() {
		left := r.Type == incomingType && r.Epoch <= k.Epoch ||
			r.Type == api.VolumeLocal && r.Used <= k.Epoch && (r.Moved == k.Epoch || r.Moved == 0 && r.Used == k.Epoch)
		if r.Instance != k.Instance || r.Name != name || !left {
			continue
		}
		err := m.discard(r)
		if err != nil {
			return changed, fmt.Errorf("discard volume %s: %w", r.id(), err)
		}
		changed = changed || r.Type == api.VolumeLocal
	}
	return changed, nil
}

// discard deletes a volume whose record has not changed.
func (m *Manager) discard(r record) error {
	v, err := m.take(r)
	if err != nil {
		return err
	}
	defer v.busy.Unlock()
	switch {
	case v.Instance == "":
		m.forget(v)
		return nil
	case v.Held:
		return fmt.Errorf("the placement %s still has it: %w", v.Epoch, api.ErrConflict)
	case v.record != r:
		return fmt.Errorf("it has changed meanwhile: %w", api.ErrConflict)
	}
	m.endSending(v)
	if err := detach(v.dir); err != nil {
		return err
	}
	return m.delete(v)
}

// expireIncoming deletes incoming volumes that nobody completes or discards.
func (m *Manager) expireIncoming(now time.Time) {
	for _, r := range m.all() {
		if r.Type != incomingType || now.Sub(r.Created) < incomingLife {
			continue
		}
		m.mu.Lock()
		v := m.volumes[r.name()]
		m.mu.Unlock()
		if v == nil || !v.busy.TryLock() {
			continue
		}
		if v.record == r {
			if err := errors.Join(detach(v.dir), m.delete(v)); err != nil {
				m.log.Warn("incoming volume not deleted", "volume", r.id(), "err", err)
			}
		}
		v.busy.Unlock()
	}
}
