package udp

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestReceiveBuffersUseNoMemoryBeforeMessagesArrive(t *testing.T) {
	for range 4 { // memory that was used before
		used := make([]byte, slots*slotStep)
		for i := range used {
			used[i] = 1
		}
	}
	runtime.GC()
	a, b := open(t, "127.0.0.1:0"), open(t, "127.0.0.1:0")
	r := b.NewReceiver()
	if n := inMemory(t, r.room); n > 2 { // its first and last page may be shared with other memory
		t.Errorf("%d pages of a new room are in memory", n)
	}
	for i, v := range r.room {
		if v != 0 {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
	vacate(r.room)
	if err := a.NewSender().Send(b.Local(), []byte("hello"), 5); err != nil {
		t.Fatal(err)
	}
	if all, _ := read(t, r, 5); len(all) != 1 || string(all[0]) != "hello" {
		t.Errorf("%q came", all)
	}
	for n := range 3 * os.Getpagesize() { // also with less than a page in it
		vacate(r.room[1 : 1+n])
	}
}

// inMemory returns the number of a buffer's resident pages, including those at its ends.
func inMemory(t *testing.T, b []byte) (n int) {
	t.Helper()
	page := uintptr(os.Getpagesize())
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	first := at - at%page
	seen := make([]byte, (at+uintptr(len(b))-first+page-1)/page)
	_, _, errno := syscall.Syscall(unix.SYS_MINCORE, first, uintptr(len(seen))*page, uintptr(unsafe.Pointer(&seen[0])))
	if errno != 0 {
		t.Fatal("mincore: ", errno)
	}
	for _, s := range seen {
		n += int(s & 1)
	}
	return n
}
