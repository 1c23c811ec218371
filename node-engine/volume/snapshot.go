package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/durable"
	"github.com/treeline-edge/treeline/internal/fairshare"
)

// copies bounds the copies of volumes, each of which takes up to the size of its volume on the disk.
var copies = fairshare.Bound{
	Per: "tenant", Beyond: "429, try again; one without progress for ten minutes ends",
	Attack: "TestSnapshotsOfOneTenantLeaveRoomForOthers",
}.Declare("volumes that a node is copying or restoring", 4, 2)

const (
	// maxFreeze is how long the writes of a workload may wait for a snapshot.
	maxFreeze = 5 * time.Minute
	// The space of the disk that copies of volumes leave to the node is the smaller of these.
	leaveBytes  = 1 << 30
	leaveFactor = 20 // a twentieth of the disk
)

// Snapshot writes the files of a local volume to w. While a workload has the volume, its writes wait
// until the files were copied to the disk of the node; w is written afterwards. Errors: ErrNotFound,
// ErrFull (the disk has no space for the copy), ErrTooMany, ErrInvalid (its files are larger than the
// volume, because they are sparse, or too many), ErrTimeout (the copy takes too long).
func (m *Manager) Snapshot(ctx context.Context, id api.VolumeID, w io.Writer) error {
	place, err := m.copies.Take(time.Now(), []string{string(id.Tenant().Top())}, nil)
	if err != nil {
		return fmt.Errorf("snapshot volume %s: %w", id, err)
	}
	defer place.Release()
	copied, err := m.copyFiles(ctx, id)
	if err != nil {
		return fmt.Errorf("snapshot volume %s: %w", id, full(err))
	}
	defer copied.Close() // it has no name, so that nothing is left after a crash
	if _, err := io.Copy(w, cancelled{ctx, copied}); err != nil {
		return fmt.Errorf("snapshot volume %s: %w", id, err)
	}
	return nil
}

func full(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w: %w", api.ErrFull, err)
	}
	return err
}

func (m *Manager) copyFiles(ctx context.Context, id api.VolumeID) (_ *os.File, err error) {
	v, err := m.existing(id)
	if err != nil {
		return nil, err
	}
	defer v.busy.Unlock()
	if err := attach(v.dir); err != nil {
		return nil, err
	}
	at := filepath.Join(v.dir, mountDir)
	if !v.Held {
		defer func() { err = errors.Join(err, detach(v.dir)) }()
	}
	copied, err := m.reserve(at)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = copied.Close()
		}
	}()
	if v.Held {
		thaw, err := freeze(at)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, thaw()) }()
		var cancel func()
		ctx, cancel = context.WithTimeoutCause(ctx, maxFreeze,
			fmt.Errorf("the copy takes longer than the %s that the writes of a workload may wait; stop the service first: %w", maxFreeze, api.ErrTimeout))
		defer cancel()
	}
	head := snapshotHead{Version: snapshotVersion, Volume: id, SizeMB: v.SizeMB, Taken: time.Now().UTC(), Running: v.Held}
	if err := writeArchive(ctx, copied, filepath.Join(at, dataDir), head); err != nil {
		return nil, err
	}
	_, err = copied.Seek(0, io.SeekStart)
	return copied, err
}

// existing returns a local volume, locked. Errors: ErrNotFound.
func (m *Manager) existing(id api.VolumeID) (*volume, error) {
	v, err := m.take(record{Type: api.VolumeLocal, Instance: id.Instance(), Name: id.Label()})
	if err != nil {
		return nil, err
	}
	if v.Instance == "" {
		m.forget(v)
		v.busy.Unlock()
		return nil, api.ErrNotFound
	}
	return v, nil
}

// reserve returns an empty file without a name, with space for the content of the file system at a path.
func (m *Manager) reserve(at string) (*os.File, error) {
	var used unix.Statfs_t
	if err := unix.Statfs(at, &used); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: at, Err: err}
	}
	fd, err := unix.Open(m.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "create a file in", Path: m.dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), "snapshot")
	err = unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, max(1, int64(used.Blocks-used.Bfree)*used.Bsize))
	if err == nil {
		err = m.leaves()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// leaves returns ErrFull if the disk has less free space than a copy of a volume leaves to the node.
func (m *Manager) leaves() error {
	var disk unix.Statfs_t
	if err := unix.Statfs(m.dir, &disk); err != nil {
		return &os.PathError{Op: "statfs", Path: m.dir, Err: err}
	}
	want := min(leaveBytes, int64(disk.Blocks)*disk.Bsize/leaveFactor)
	if free := int64(disk.Bavail) * disk.Bsize; free < want {
		return fmt.Errorf("a copy would leave %d MiB of the node's disk free, want at least %d MiB: %w", free>>20, want>>20, api.ErrFull)
	}
	return nil
}

// The requests of ioctl_fs.h, which package unix does not have.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// freeze makes writes to a file system wait, after what was written is on the disk.
func freeze(at string) (thaw func() error, err error) {
	d, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetInt(int(d.Fd()), fiFreeze, 0); err != nil {
		return nil, errors.Join(&os.PathError{Op: "freeze", Path: at, Err: err}, d.Close())
	}
	return func() error {
		return errors.Join(unix.IoctlSetInt(int(d.Fd()), fiThaw, 0), d.Close())
	}, nil
}

// thawLeft ends a freeze that an earlier process did not end. It succeeds if there is no such directory.
func thawLeft(at string) error {
	d, err := os.Open(at)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = unix.IoctlSetInt(int(d.Fd()), fiThaw, 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // it is not frozen
		err = nil
	}
	return errors.Join(err, d.Close())
}

// Restore replaces the files of a local volume, which no placement has, with those of a snapshot. The
// volume keeps its files if Restore fails. Errors: ErrNotFound, ErrConflict (a placement has it),
// ErrInvalid (the snapshot is not complete, or has more than a snapshot has), ErrFull (the disk has no
// space for both, which is known before r is read, or the files do not fit into the volume), ErrTooMany.
func (m *Manager) Restore(ctx context.Context, id api.VolumeID, r io.Reader) error {
	if err := m.restore(ctx, id, r); err != nil {
		return fmt.Errorf("restore volume %s: %w", id, full(err))
	}
	return nil
}

// restorable returns a volume that no placement has, locked.
func (m *Manager) restorable(id api.VolumeID) (*volume, error) {
	v, err := m.existing(id)
	if err != nil {
		return nil, err
	}
	if v.Held {
		defer v.busy.Unlock()
		return nil, fmt.Errorf("the placement %s still has it: %w", v.Epoch, api.ErrConflict)
	}
	return v, nil
}

func (m *Manager) restore(ctx context.Context, id api.VolumeID, r io.Reader) error {
	v, err := m.restorable(id)
	if err != nil {
		return err
	}
	sizeMB, created := v.SizeMB, v.Created
	v.busy.Unlock() // a slow reader must not keep a placement from its volume
	return m.filled(ctx, id, sizeMB, r, func(dir string) error {
		v, err := m.restorable(id)
		if err != nil {
			return err
		}
		defer v.busy.Unlock()
		if v.SizeMB != sizeMB || !v.Created.Equal(created) {
			return fmt.Errorf("it was replaced meanwhile: %w", api.ErrConflict)
		}
		if err := errors.Join(durable.WriteJSON(dir, recordFile, v.record), detach(v.dir)); err != nil {
			return err
		}
		// After this, dir is the volume that was replaced.
		if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, v.dir, unix.RENAME_EXCHANGE); err != nil {
			return &os.LinkError{Op: "exchange", Old: dir, New: v.dir, Err: err}
		}
		return durable.SyncDir(m.dir)
	})
}

// filled creates a volume under another name, with the files of a snapshot, and calls keep when they are
// all on the disk. It deletes what keep leaves under the other name.
func (m *Manager) filled(ctx context.Context, id api.VolumeID, sizeMB int64, r io.Reader, keep func(dir string) error) (err error) {
	place, err := m.copies.Take(time.Now(), []string{string(id.Tenant().Top())}, nil)
	if err != nil {
		return err
	}
	defer place.Release()
	dir, err := os.MkdirTemp(m.dir, newPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove(dir)) }()
	if err := format(ctx, dir, sizeMB); err != nil {
		return err
	}
	if err := m.leaves(); err != nil {
		return err
	}
	if err := attach(dir); err != nil {
		return err
	}
	at := filepath.Join(dir, mountDir)
	if err := readArchive(ctx, r, filepath.Join(at, dataDir)); err != nil {
		return err
	}
	if err := errors.Join(flush(at), detach(dir)); err != nil {
		return err
	}
	return keep(dir)
}

// flush returns when what was written to a file system is on the disk.
func flush(at string) error {
	d, err := os.Open(at)
	if err != nil {
		return err
	}
	if err = unix.Syncfs(int(d.Fd())); err != nil {
		err = &os.PathError{Op: "syncfs", Path: at, Err: err}
	}
	return errors.Join(err, d.Close())
}
