package main

import (
	"runtime"
	"syscall"
)

// outb writes to an I/O port. The thread needs the right to it.
//
//go:noescape
func outb(port uint16, value byte)

// write writes to an I/O port.
func write(port uint16, value byte) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_IOPERM, uintptr(port), 1, 1); errno != 0 {
		return errno
	}
	outb(port, value)
	return nil
}
