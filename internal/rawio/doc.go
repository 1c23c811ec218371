// Package rawio waits for a file descriptor in the kernel, with the thread of
// whoever asks. Go's own poller serves thousands of descriptors with a few threads,
// and wakes a second thread whenever the first has something to do; for the two
// descriptors that a tunnel lives on that costs more than the packet: a round trip
// of 64 bytes through two tunnels took 270 µs with it, most of it spent in waking
// threads that found nothing to do.
//
// It does no system call but those that wait: which one reads and which one writes
// is the caller's.
//
//	f, err := rawio.New(fd)
//	err = f.Read(func(fd int) syscall.Errno { n, errno = read(fd, b); return errno })
package rawio
