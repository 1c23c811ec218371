package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Disk is a small separate file system for a daemon's data: ext4 in a file, on a loop device.
type Disk struct {
	Dir string

	image string
	l     *Lab
}

// disk mounts a Disk of the given size.
func (l *Lab) disk(name string, bytes int64) *Disk {
	l.t.Helper()
	d := &Disk{Dir: filepath.Join(l.Dir, name), image: filepath.Join(l.Dir, name+".img"), l: l}
	l.must(os.MkdirAll(d.Dir, 0o700))
	l.must(os.WriteFile(d.image, nil, 0o600))
	l.must(os.Truncate(d.image, bytes))
	// Without a journal, small disks have more room, and nothing here cuts the power of the machine itself.
	d.run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", d.image)
	d.mount()
	l.must(os.Chmod(d.Dir, 0o700))                        //nolint:gosec // a directory
	l.must(os.Remove(filepath.Join(d.Dir, "lost+found"))) // the daemon's directory is empty at its first start
	return d
}

func (d *Disk) run(args ...string) {
	d.l.t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		d.l.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (d *Disk) mount() {
	d.l.t.Helper()
	d.run("mount", "-o", "loop,errors=remount-ro", d.image, d.Dir)
}

// Fill fills the disk.
func (d *Disk) Fill() {
	d.l.t.Helper()
	f, err := os.Create(filepath.Join(d.Dir, "ballast"))
	d.l.must(err)
	defer f.Close()
	block := make([]byte, 4096)
	for {
		if _, err := f.Write(block); err != nil {
			return
		}
	}
}

// Free undoes Fill.
func (d *Disk) Free() {
	d.l.t.Helper()
	d.l.must(os.Remove(filepath.Join(d.Dir, "ballast")))
}

// Freeze makes every write wait until Thaw, like a disk that does not answer.
func (d *Disk) Freeze() { d.ioctl(fifreeze) }

// Thaw ends Freeze.
func (d *Disk) Thaw() { d.ioctl(fithaw) }

// The requests FIFREEZE and FITHAW of linux/fs.h.
const (
	fifreeze = 0xc0045877
	fithaw   = 0xc0045878
)

func (d *Disk) ioctl(request uint) {
	d.l.t.Helper()
	f, err := os.Open(d.Dir)
	d.l.must(err)
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), request, 0); err != nil {
		d.l.t.Fatalf("freeze or thaw %s: %v", d.Dir, err)
	}
}

// ReadOnly makes the kernel refuse all writes, as it does after an error of the device.
func (d *Disk) ReadOnly() {
	d.l.t.Helper()
	device := ""
	mounts, err := os.ReadFile("/proc/self/mounts")
	d.l.must(err)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && f[1] == d.Dir {
			device = filepath.Base(f[0])
		}
	}
	// The write itself may fail, because the file system is read-only when it returns.
	_ = os.WriteFile(fmt.Sprintf("/sys/fs/ext4/%s/trigger_fs_error", device), []byte("1"), 0o200)
	if f, err := os.Create(filepath.Join(d.Dir, "probe")); err == nil {
		_ = f.Close()
		d.l.t.Fatalf("%s on %q can still be written", d.Dir, device)
	}
}

// Repair mounts the disk again after ReadOnly. No process may use it.
func (d *Disk) Repair() {
	d.l.t.Helper()
	l := d.l
	var err error
	Within(l.t, patience, "the disk is not in use", func() error {
		err = unix.Unmount(d.Dir, 0)
		return err
	})
	// Processes in other mount namespaces may still have the file system, so a copy is repaired.
	d.run("cp", "--sparse=always", d.image, d.image+".repaired")
	d.image += ".repaired"
	out, _ := exec.Command("e2fsck", "-f", "-y", d.image).CombinedOutput() // its exit code says what it repaired
	d.mount()
	probe := filepath.Join(d.Dir, "probe")
	if err := os.WriteFile(probe, nil, 0o600); err != nil {
		l.t.Fatalf("the disk cannot be written after its repair: %v\n%s", err, out)
	}
	l.must(os.Remove(probe))
}
