package command

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDoctorOfAReadOnlyProcSys(t *testing.T) {
	for _, tt := range []struct {
		err         error
		result, fix string
	}{
		{nil, checkOK, ""},
		{unix.EROFS, checkFailed, "--privileged"},
		{unix.EACCES, checkWarns, "as root"},
		{unix.ENOENT, checkFailed, "CONFIG_SYSCTL"},
	} {
		if k := checkSysctl(tt.err); k.Result != tt.result || !strings.Contains(k.Fix, tt.fix) {
			t.Errorf("%v: %+v, want %s with the fix %q", tt.err, k, tt.result, tt.fix)
		}
	}
}
