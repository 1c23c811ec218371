package api

import (
	"fmt"
	"strings"
)

// Exec is a process that a user runs in the workload of an instance.
type Exec struct {
	Args   []string `json:"args"`
	TTY    bool     `json:"tty,omitempty"`    // in a terminal
	Stdin  bool     `json:"stdin,omitempty"`  // with the user's input
	Width  uint16   `json:"width,omitempty"`  // of the terminal
	Height uint16   `json:"height,omitempty"` // of the terminal
}

// The bounds of an Exec.
const (
	MaxExecArgs  = 256
	MaxExecBytes = 16 << 10 // of all arguments
)

// Validate returns ErrInvalid if e is not within its bounds.
func (e Exec) Validate() error {
	bytes := 0
	for _, a := range e.Args {
		if bytes += len(a); strings.ContainsRune(a, 0) {
			return fmt.Errorf("argument %q contains a zero byte: %w", a, ErrInvalid)
		}
	}
	switch {
	case len(e.Args) == 0 || e.Args[0] == "":
		return fmt.Errorf("no program is given: %w", ErrInvalid)
	case len(e.Args) > MaxExecArgs:
		return fmt.Errorf("%d arguments: at most %d: %w", len(e.Args), MaxExecArgs, ErrInvalid)
	case bytes > MaxExecBytes:
		return fmt.Errorf("arguments of %d bytes: at most %d: %w", bytes, MaxExecBytes, ErrInvalid)
	}
	return nil
}
