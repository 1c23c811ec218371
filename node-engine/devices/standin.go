package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/treeline-edge/treeline/api"
)

const (
	testVendor = "test.treeline.dev"
	testFile   = "test-devices.json"
	maxTests   = 64
)

// Test is a number of test devices of a class, without hardware. Those of the classes gpu and tpu count
// as GPUs and TPUs.
type Test struct {
	Class string
	Count int
}

// ParseTest parses "test.treeline.dev/widget=2". It fails with ErrInvalid.
func ParseTest(text string) (Test, error) {
	kind, count, _ := strings.Cut(text, "=")
	class, ok := strings.CutPrefix(kind, testVendor+"/")
	n, err := strconv.Atoi(count)
	if !ok || !api.ValidMachineName(class) || err != nil || n < 1 || n > maxTests {
		return Test{}, fmt.Errorf("%q is not %s/CLASS=COUNT with a count of 1 to %d, such as %s/widget=2: %w", text, testVendor, maxTests, testVendor, api.ErrInvalid)
	}
	return Test{class, n}, nil
}

// writeTests writes the CDI specifications of test devices, one file per class. A test device is a
// copy of /dev/null and an environment variable.
func writeTests(dir string, tests []Test) error {
	if dir == "" {
		return nil
	}
	old, err := filepath.Glob(filepath.Join(dir, "*-"+testFile))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if len(tests) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, t := range tests {
		s := cdispec.Spec{Kind: testVendor + "/" + t.Class}
		for i := range t.Count {
			name := strconv.Itoa(i)
			upper := strings.ToUpper(strings.ReplaceAll(t.Class, "-", "_")) + "_" + name
			s.Devices = append(s.Devices, cdispec.Device{Name: name, ContainerEdits: cdispec.ContainerEdits{
				Env:         []string{"TREELINE_TEST_" + upper + "=" + s.Kind + "=" + name},
				DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/treeline-test-" + t.Class + name, HostPath: "/dev/null"}},
			}})
		}
		if s.Version, err = cdispec.MinimumRequiredVersion(&s); err != nil {
			return err
		}
		b, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, t.Class+"-"+testFile), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
