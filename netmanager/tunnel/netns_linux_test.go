package tunnel

import "golang.org/x/sys/unix"

// segment makes the kernel segment writes to a UDP socket.
func segment(fd, size int) {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, size); err != nil {
		panic(err)
	}
}
