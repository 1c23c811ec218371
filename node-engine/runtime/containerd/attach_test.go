package containerd

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	LogWriterMain()
	os.Exit(m.Run())
}
