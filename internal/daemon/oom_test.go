package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

func TestDaemonsAreKilledLast(t *testing.T) {
	for before, want := range map[string]string{"0\n": "-900", "500": "-900", "-900": "-900", "-999\n": "-999\n"} {
		file := filepath.Join(t.TempDir(), "oom_score_adj")
		if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		protect(slog.New(slog.NewTextHandler(&log, nil)), file)
		got, err := os.ReadFile(file)
		if err != nil || string(bytes.TrimRight(got, "\x00"))[:4] != want[:4] || log.Len() > 0 {
			t.Errorf("from %q it is %q, want %q (%v, %s)", before, got, want, err, &log)
		}
	}
	var log bytes.Buffer
	protect(slog.New(slog.NewTextHandler(&log, nil)), filepath.Join(t.TempDir(), "none"))
	if log.Len() > 0 {
		t.Errorf("without the file it logs %s", &log)
	}
}
