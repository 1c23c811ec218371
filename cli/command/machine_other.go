//go:build !linux

package command

func checkMachine() []checked {
	return []checked{failed("system", "run the node engine on Linux", "nodes run on Linux only")}
}
