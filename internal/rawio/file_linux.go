package rawio

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// File is an open descriptor. It is safe for concurrent use. It stays open until Close.
type File struct {
	fd, stop int // stop is an eventfd that wakes all waiting calls
	closed   atomic.Bool
	yielded  atomic.Int64 // nanoseconds from began to the last yield

	// use is held, shared, while the descriptors are used, because the number of a closed
	// descriptor may be reused at once.
	use sync.RWMutex
}

// New takes ownership of a descriptor, which it closes if it fails, and makes it non-blocking.
func New(fd int) (*File, error) {
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		if err = unix.SetNonblock(fd, true); err != nil {
			unix.Close(stop)
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("prepare to wait: %w", err)
	}
	return &File{fd: fd, stop: stop}, nil
}

// Read calls fn, which reads the descriptor, until it returns neither EAGAIN nor EINTR. After
// EAGAIN it waits until the descriptor is readable. It returns fn's last error, or net.ErrClosed.
// fn must not close the file.
func (f *File) Read(fn func(fd int) syscall.Errno) error { return f.do(fn, unix.POLLIN) }

// Write is Read, but waits until the descriptor is writable.
func (f *File) Write(fn func(fd int) syscall.Errno) error { return f.do(fn, unix.POLLOUT) }

func (f *File) do(fn func(fd int) syscall.Errno, event int16) error {
	f.use.RLock()
	defer f.use.RUnlock()
	for !f.closed.Load() {
		switch errno := fn(f.fd); errno {
		case 0:
			return nil
		case unix.EINTR:
		case unix.EAGAIN:
			f.wait(event)
		default:
			return errno
		}
	}
	return net.ErrClosed
}

// yieldEvery is the interval at which a waiting goroutine enters Go's scheduler. After 10 ms
// without this, the runtime's monitor wakes every 20 µs and takes the goroutine's processor (P)
// away in each system call, which doubled the time of a packet.
const yieldEvery = 4 * time.Millisecond

var began = time.Now()

// wait returns when the event or Close may have happened.
func (f *File) wait(event int16) {
	if now := int64(time.Since(began)); now-f.yielded.Load() > int64(yieldEvery) {
		f.yielded.Store(now)
		runtime.Gosched()
	}
	fds := [2]unix.PollFd{{Fd: int32(f.fd), Events: event}, {Fd: int32(f.stop), Events: unix.POLLIN}}
	// The result is not needed: do calls fn again.
	_, _, _ = syscall.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), 0, 0, 0, 0)
}

// Close interrupts all waiting calls with net.ErrClosed, and returns when the descriptor is
// closed.
func (f *File) Close() error {
	if !f.closed.CompareAndSwap(false, true) {
		return net.ErrClosed
	}
	one := [8]byte{1} // not zero in either byte order
	_, _ = unix.Write(f.stop, one[:])
	f.use.Lock()
	defer f.use.Unlock()
	unix.Close(f.stop)
	return unix.Close(f.fd)
}
