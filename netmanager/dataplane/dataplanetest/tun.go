package dataplanetest

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Tun is a TUN device of a host, as a netmanager would use it.
type Tun struct {
	f    *os.File
	seen chan []byte
}

// newTun creates a TUN device. It keeps up to 4096 packets from the kernel and drops the others.
func newTun(s *Space, name string) *Tun {
	s.t.Helper()
	var fd int
	var err error
	s.Do(func() {
		// Non-blocking from the start, so that Close ends a Read.
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
			return
		}
		req, _ := unix.NewIfreq(name)
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	})
	if err != nil {
		s.t.Fatalf("make %s: %v", name, err)
	}
	d := &Tun{f: os.NewFile(uintptr(fd), name), seen: make(chan []byte, 4096)}
	go d.read()
	s.t.Cleanup(func() { d.f.Close() })
	return d
}

func (d *Tun) read() {
	for {
		b := make([]byte, 65536)
		n, err := d.f.Read(b)
		if err != nil {
			close(d.seen)
			return
		}
		select {
		case d.seen <- b[:n]:
		default: // full: drop the packet
		}
	}
}

// pump writes all packets from the kernel to another device, like a tunnel without checks.
func (d *Tun) pump(to *Tun) {
	for p := range d.seen {
		if to.Write(p) != nil {
			return
		}
	}
}

// Write sends a packet into the kernel.
func (d *Tun) Write(p []byte) error {
	_, err := d.f.Write(p)
	return err
}

// Wait returns the next packet that matches want, and drops others before it.
func (d *Tun) Wait(want func(packet []byte) bool) ([]byte, error) {
	late := time.After(patience)
	for {
		select {
		case p, ok := <-d.seen:
			if !ok {
				return nil, fmt.Errorf("%s is closed", d.f.Name())
			}
			if want(p) {
				return p, nil
			}
		case <-late:
			return nil, fmt.Errorf("%s: no such packet within %v", d.f.Name(), patience)
		}
	}
}
