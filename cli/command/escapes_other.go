//go:build !windows

package command

// enableEscapes does nothing: terminals interpret escape sequences by default.
func enableEscapes() {}
