package lab

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Disk is a small separate file system for a daemon's data.
type Disk struct {
	Dir string
	t   T
}

// disk mounts a Disk of the given size.
func (l *Lab) disk(name string, bytes int64) *Disk {
	l.t.Helper()
	dir := filepath.Join(l.Dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		l.t.Fatalf("%v", err)
	}
	if err := unix.Mount("lab", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
		l.t.Fatalf("mount a disk of %d bytes on %s: %v", bytes, dir, err)
	}
	return &Disk{Dir: dir, t: l.t}
}

// Fill fills the disk.
func (d *Disk) Fill() {
	d.t.Helper()
	f, err := os.Create(filepath.Join(d.Dir, "ballast"))
	if err != nil {
		d.t.Fatalf("%v", err)
	}
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
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.Dir, "ballast")); err != nil {
		d.t.Fatalf("%v", err)
	}
}
