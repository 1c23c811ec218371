package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/treeline-edge/treeline/internal/durable"
	"github.com/treeline-edge/treeline/internal/store"
)

// LockTimeout is how long Open waits for another process, such as an ending daemon, to release
// the file.
const LockTimeout = 3 * time.Second

// ErrInUse means that another process has the file open.
var ErrInUse = errors.New("in use by another process")

// Open opens the store in the file at path, and creates the file, but not its directory, if it
// does not exist. It reads the whole file. It fails with store.ErrCorrupt, without changing the
// file, if that is damaged or not a store, and with ErrInUse if another process has it open.
func Open(path string) (*Store, error) {
	return open(path, LockTimeout, func() error { return nil })
}

// OpenWith is Open, and calls locked when no other process has the file open, before it reads it.
// If locked fails, OpenWith fails with its error.
func OpenWith(path string, locked func() error) (*Store, error) {
	return open(path, LockTimeout, locked)
}

func open(path string, timeout time.Duration, locked func() error) (*Store, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := create(path); err != nil {
			if isFull(err) {
				err = fmt.Errorf("%w (%w)", store.ErrFull, err)
			}
			return nil, fmt.Errorf("create the store %s: %w", path, err)
		}
	}
	options := *boltOptions
	// bbolt changes nothing before OpenFile returns, and keeps the lock.
	options.OpenFile = func(path string, _ int, _ os.FileMode) (*os.File, error) {
		return openWhole(path, timeout, locked)
	}
	db, err := bolt.Open(path, 0o600, &options)
	if err != nil {
		return nil, fmt.Errorf("open the store %s: %w", path, err)
	}
	return &Store{path: path, db: db, turn: make(chan struct{}, 1)}, nil
}

// boltOptions sync every commit. The list of free pages is not stored, because computing it at
// start costs less than writing it with each commit.
var boltOptions = &bolt.Options{
	NoFreelistSync: true,
	FreelistType:   bolt.FreelistMapType,
	PageSize:       4096,
	NoStatistics:   true,
}

func openWhole(path string, timeout time.Duration, locked func() error) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := lock(f, timeout); err != nil {
		_ = f.Close()
		return nil, err
	}
	if err := locked(); err != nil {
		_ = f.Close()
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		if err = verify(f, info.Size()); err != nil {
			err = corrupt(path, err)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// lock takes the same lock as bbolt. The kernel releases it when the process ends.
func lock(f *os.File, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return fmt.Errorf("lock it: %w", err)
		case time.Now().After(deadline):
			return fmt.Errorf("waited %v: %w%s; one process at a time can use it: stop that process, or give this one a data directory of its own",
				timeout, ErrInUse, holder(f))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// create makes an empty store in a temporary directory and links it to path, so that a crash
// leaves no incomplete file there.
func create(path string) error {
	dir := filepath.Dir(path)
	tmp, err := os.MkdirTemp(dir, "."+filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()

	fresh := filepath.Join(tmp, "store")
	db, err := bolt.Open(fresh, 0o600, boltOptions)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucket(metaBucket)
		if err != nil {
			return err
		}
		_, err = tx.CreateBucket(docsBucket)
		return errors.Join(err, meta.Put(formatKey, formatOne), meta.Put(digestKey, encodeDigest(0)))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	// If another process has created it first, that file is used.
	if err := os.Link(fresh, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return durable.SyncDir(dir)
}

func corrupt(path string, err error) error {
	return fmt.Errorf("%w: %w; %s was not changed: replace it by a backup, or move it away to start with an empty store",
		store.ErrCorrupt, err, path)
}
