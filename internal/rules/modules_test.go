package rules_test

import (
	"os"
	"os/exec"
	"testing"
)

// TestModulesNameAllRequirements lists the packages of each module with its go.mod as it is. A new dependency of the
// product is one of the benchmarks' module, too, and go refuses to work there until it is named.
func TestModulesNameAllRequirements(t *testing.T) {
	for name, dir := range map[string]string{"product": "../..", "benchmarks": "../../testbed/bench"} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("go", "list", "./...")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s\nrun go mod tidy in %s", err, out, dir)
			}
		})
	}
}
