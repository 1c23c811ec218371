package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const mkfs = "mkfs.ext4"

// format creates a file of the volume's size with an ext4 file system in dir, with a directory in it
// that every user of a container may write to.
func format(ctx context.Context, dir string, sizeMB int64) error {
	image := filepath.Join(dir, imageFile)
	if err := allocate(image, sizeMB<<20); err != nil {
		return fmt.Errorf("allocate %d MiB: %w", sizeMB, err)
	}
	// Discarding blocks would release the space of the file.
	out, err := exec.CommandContext(ctx, mkfs, "-q", "-F", "-m", "0", "-E", "nodiscard", image).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", mkfs, err, strings.TrimSpace(string(out)))
	}
	if err := attachTo(dir); err != nil {
		return err
	}
	at := filepath.Join(dir, mountDir)
	err = os.Remove(filepath.Join(at, "lost+found")) // e2fsck creates it when it needs it
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	data := filepath.Join(at, dataDir)
	if err == nil {
		err = os.Mkdir(data, 0o777)
	}
	if err == nil {
		err = os.Chmod(data, 0o777) // despite the umask
	}
	return errors.Join(err, detach(dir))
}

// allocate creates a file whose blocks are all reserved on the disk.
func allocate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = unix.Fallocate(int(f.Fd()), 0, 0, size); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// attach mounts the volume in dir, unless it is mounted.
func attach(dir string) error {
	mounted, err := mountinfo.Mounted(filepath.Join(dir, mountDir))
	if err == nil && mounted {
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return attachTo(dir)
}

func attachTo(dir string) error {
	at, image := filepath.Join(dir, mountDir), filepath.Join(dir, imageFile)
	if err := os.Mkdir(at, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	device, err := loopOf(image)
	if err == nil && device == nil {
		// The kernel releases the device when the file system is unmounted.
		device, err = mount.SetupLoop(image, mount.LoopParams{Autoclear: true})
	}
	if err != nil {
		return fmt.Errorf("attach %s: %w", image, err)
	}
	defer device.Close()
	if err := unix.Mount(device.Name(), at, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, ""); err != nil {
		return &os.PathError{Op: "mount", Path: image, Err: err}
	}
	return nil
}

// loopOf returns the loop device that has the file, nil if there is none. A file must not get a second
// device while it has one: the file system would be mounted twice and destroyed. It has one after it was
// unmounted as long as a mount namespace that was copied before, such as that of a container which is
// being created, has a copy of the mount.
func loopOf(image string) (*os.File, error) {
	var file unix.Stat_t
	if err := unix.Stat(image, &file); err != nil {
		return nil, err
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return nil, err
	}
	for _, path := range bound {
		device, err := os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(path))), os.O_RDWR, 0)
		if err != nil {
			continue // it was released meanwhile
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && info.Inode == file.Ino && info.Device == file.Dev {
			return device, nil // while it is open, it is not released
		}
		_ = device.Close()
	}
	return nil, nil
}

const (
	detachTime  = 5 * time.Second // processes of a container that has ended may use the mount a little longer
	detachPause = 20 * time.Millisecond
)

// detach unmounts the volume in dir, if it is mounted.
func detach(dir string) error {
	at := filepath.Join(dir, mountDir)
	until := time.Now().Add(detachTime)
	for {
		err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil: // mounts may be stacked
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EBUSY) || time.Now().After(until):
			return &os.PathError{Op: "unmount", Path: at, Err: err}
		default:
			time.Sleep(detachPause)
		}
	}
}

// remove unmounts and deletes the volume in dir, if there is one.
func remove(dir string) error {
	if err := detach(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
