package faults

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// errClock says why a wall clock cannot be moved here.
var errClock = errors.New("cannot be injected on this architecture")

// moveClock moves the wall clock of one running Go program, without the clocks of the machine and
// of other programs. Time namespaces have no wall clock, and a static program loads no library.
// The Go runtime calls clock_gettime in the vDSO through a variable, whose value this replaces by
// the address of a few instructions in the unused end of the process's own copy of the vDSO: they
// call the original and add to the seconds of CLOCK_REALTIME. Each call replaces the one before.
func moveClock(pid int, by time.Duration) error {
	if runtime.GOARCH != "amd64" {
		return errClock
	}
	variable, err := symbol(fmt.Sprintf("/proc/%d/exe", pid), "runtime.vdsoClockgettimeSym")
	if err != nil {
		return err
	}
	from, to, err := vdso(pid)
	if err != nil {
		return err
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	at := to - caveSize
	var word [8]byte
	if _, err := mem.ReadAt(word[:], int64(variable)); err != nil {
		return fmt.Errorf("read %#x of process %d: %w", variable, pid, err)
	}
	original := binary.LittleEndian.Uint64(word[:])
	if original == at { // moved before: only the seconds change
		binary.LittleEndian.PutUint64(word[:], uint64(int64(by/time.Second)))
		_, err = mem.WriteAt(word[:], int64(at)+caveSeconds)
		return err
	}
	cave := make([]byte, caveSize)
	if _, err := mem.ReadAt(cave, int64(at)); err != nil {
		return fmt.Errorf("read the vDSO of process %d: %w", pid, err)
	}
	for _, b := range cave {
		if b != 0 {
			return fmt.Errorf("the vDSO of process %d at %#x has no room of %d bytes at its end", pid, from, caveSize)
		}
	}
	code := []byte{
		0x57,       // push rdi
		0x56,       // push rsi
		0x48, 0xb8, // mov rax, original
		0, 0, 0, 0, 0, 0, 0, 0,
		0x48, 0x83, 0xec, 0x08, // sub rsp, 8
		0xff, 0xd0, // call rax
		0x48, 0x83, 0xc4, 0x08, // add rsp, 8
		0x5e,       // pop rsi
		0x5f,       // pop rdi
		0x85, 0xff, // test edi, edi; CLOCK_REALTIME is 0
		0x75, 0x0a, // jne end
		0x48, 0x8b, 0x0d, 0, 0, 0, 0, // mov rcx, [rip+seconds]
		0x48, 0x01, 0x0e, // add [rsi], rcx
		0xc3, // end: ret
	}
	binary.LittleEndian.PutUint64(code[4:], original)
	next := 35 // the offset after the mov rcx
	binary.LittleEndian.PutUint32(code[next-4:], uint32(caveSeconds-next))
	copy(cave, code)
	binary.LittleEndian.PutUint64(cave[caveSeconds:], uint64(int64(by/time.Second)))
	if _, err := mem.WriteAt(cave, int64(at)); err != nil {
		return fmt.Errorf("write the vDSO of process %d: %w", pid, err)
	}
	binary.LittleEndian.PutUint64(word[:], at)
	if _, err := mem.WriteAt(word[:], int64(variable)); err != nil {
		return fmt.Errorf("write %#x of process %d: %w", variable, pid, err)
	}
	return nil
}

const (
	caveSize    = 64
	caveSeconds = 48
)

// symbol returns the address of a variable in a program that is linked to a fixed address.
func symbol(path, name string) (uint64, error) {
	f, err := elf.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	all, err := f.Symbols()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	for _, s := range all {
		if s.Name == name && f.Type == elf.ET_EXEC {
			return s.Value, nil
		}
	}
	return 0, fmt.Errorf("%s has no symbol %s at a fixed address", path, name)
}

// vdso returns where a process has the vDSO.
func vdso(pid int) (from, to uint64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			continue
		}
		a, b, _ := strings.Cut(strings.Fields(line)[0], "-")
		from, err1 := strconv.ParseUint(a, 16, 64)
		to, err2 := strconv.ParseUint(b, 16, 64)
		return from, to, errors.Join(err1, err2)
	}
	return 0, 0, fmt.Errorf("process %d has no vDSO", pid)
}
