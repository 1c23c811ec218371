package netbench

import (
	"fmt"
	"os/exec"
	"strings"
)

// Programs are the programs of the machine that beds and loads start.
var Programs = []string{"ip", "ping", "nft", "tc", "iperf3", "ethtool", "sysctl"}

// CheckPrograms returns an error that names those of Programs that are not in PATH.
// Without this check a bed would wait for a program that never started.
func CheckPrograms() error {
	var missing []string
	for _, p := range Programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("find the programs that measure: %s not in PATH; scripts/lib.sh names the packages", strings.Join(missing, ", "))
	}
	return nil
}
