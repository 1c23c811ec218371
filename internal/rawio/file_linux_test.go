package rawio

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func pair(t *testing.T) (*File, *File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var fs [2]*File
	for i, fd := range fds {
		if fs[i], err = New(fd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { fs[i].Close() })
	}
	return fs[0], fs[1]
}

func errno(err error) syscall.Errno {
	e, _ := err.(syscall.Errno)
	return e
}

func (f *File) read(b []byte) (n int, err error) {
	err = f.Read(func(fd int) syscall.Errno {
		var err error
		n, err = unix.Read(fd, b)
		return errno(err)
	})
	return n, err
}

func (f *File) write(b []byte) error {
	return f.Write(func(fd int) syscall.Errno {
		_, err := unix.Write(fd, b)
		return errno(err)
	})
}

// The data exceeds the socket's buffer, so that both sides wait for each other.
func TestBothSidesWait(t *testing.T) {
	a, b := pair(t)
	const many = 20_000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range many {
			if err := a.write([]byte{byte(i)}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	buf := make([]byte, 8)
	for i := range many {
		if n, err := b.read(buf); n != 1 || err != nil || buf[0] != byte(i) {
			t.Fatalf("message %d: %d bytes, %d, %v", i, n, buf[0], err)
		}
	}
	wg.Wait()
}

func TestCloseEndsAllWaits(t *testing.T) {
	f, _ := pair(t)
	errs := make(chan error)
	for range 3 {
		go func() {
			_, err := f.read(make([]byte, 8))
			errs <- err
		}()
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-errs; !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	if _, err := f.read(make([]byte, 8)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	if err := f.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}

func TestErrorsAreTheCallers(t *testing.T) {
	f, other := pair(t)
	other.Close()
	if err := f.write([]byte{1}); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%v", err)
	}
}
