package command

import "golang.org/x/sys/windows"

// enableEscapes makes the console interpret escape sequences. If standard output is not a
// console it does nothing.
func enableEscapes() {
	var mode uint32
	if windows.GetConsoleMode(windows.Stdout, &mode) == nil {
		_ = windows.SetConsoleMode(windows.Stdout, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING)
	}
}
