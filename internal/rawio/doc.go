// Package rawio waits for a file descriptor in the kernel, on the caller's thread. Go's poller
// wakes a second thread whenever the first has work. For the two descriptors of a tunnel this costs
// more than the packet: a round trip of 64 bytes through two tunnels took 270 µs, mostly for waking
// threads without work.
//
//	f, err := rawio.New(fd)
//	err = f.Read(func(fd int) syscall.Errno { n, errno = read(fd, b); return errno })
package rawio
