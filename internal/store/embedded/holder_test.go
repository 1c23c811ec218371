package embedded

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestASecondProcessIsToldWhichOneHasTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), writerPath+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			for s := bufio.NewScanner(out); s.Scan(); {
			}
			_ = cmd.Wait()
		}
	}
	defer end()
	if lines := bufio.NewScanner(out); !lines.Scan() { // it has saved, so it has the file
		t.Fatal("the other process ended")
	}

	called := false
	_, err = open(path, time.Millisecond, func() error {
		called = true
		return nil
	})
	if !errors.Is(err, ErrInUse) || called {
		t.Fatalf("got %v, locked called: %v, want ErrInUse before it", err, called)
	}
	for _, want := range []string{path, fmt.Sprint("process ", cmd.Process.Pid), "stop that process"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not contain %q", err, want)
		}
	}

	// The file is free as soon as the other process has been killed.
	end()
	s, err := OpenWith(path, func() error {
		called = true
		return nil
	})
	if err != nil || !called {
		t.Fatalf("got %v, locked called: %v, want an open store", err, called)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTheHolderOfALockIsNamedOnlyIfItIsCertain(t *testing.T) {
	const locks = "1: FLOCK  ADVISORY  WRITE 4711 fd:01:131 0 EOF\n" +
		"1: -> FLOCK  ADVISORY  WRITE 4712 fd:01:131 0 EOF\n" +
		"2: POSIX  ADVISORY  WRITE 12 fd:01:132 0 EOF\n" +
		"3: FLOCK  ADVISORY  WRITE 13 fd:01:133 0 EOF\n" +
		"4: FLOCK  ADVISORY  WRITE 14 fd:02:133 0 EOF\n" +
		"5: FLOCK  ADVISORY  WRITE 0 fd:02:134 0 EOF\n" +
		"6: FLOCK\n"
	for inode, want := range map[uint64]string{131: "4711", 132: "", 133: "", 134: "", 31: ""} {
		if got := lockedBy(locks, inode); got != want {
			t.Errorf("inode %d: got %q, want %q", inode, got, want)
		}
	}
}
