package command

import (
	"context"
	"os"

	"golang.org/x/term"
)

// stdConsole is the terminal at stdin and stdout.
type stdConsole struct{}

// Raw implements Console.
func (stdConsole) Raw() (restore func(), err error) {
	fd := int(os.Stdin.Fd())
	was, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(fd, was) }, nil
}

// Size implements Console.
func (stdConsole) Size() (width, height uint16) {
	w, h, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || w < 0 || h < 0 || w > 1<<16-1 || h > 1<<16-1 {
		return 0, 0
	}
	return uint16(w), uint16(h)
}

// Changes implements Console.
func (c stdConsole) Changes(ctx context.Context) <-chan struct{} { return resized(ctx, c.Size) }
