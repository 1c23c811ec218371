package wiring

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// A file that was emptied would let everybody in.
func TestTheOperatorsTokenIsNoEmptyOne(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	log := slog.New(slog.DiscardHandler)
	made, err := operatorToken(dir, log)
	if err != nil || len(made) < minOperatorToken {
		t.Fatalf("made %d bytes, %v", len(made), err)
	}
	if again, err := operatorToken(dir, log); err != nil || again != made {
		t.Errorf("another at the second start: %v", err)
	}
	info, err := dir.Stat(OperatorFile)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	for _, text := range []string{"", "\n", "short\n"} {
		if err := dir.WriteFile(OperatorFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := operatorToken(dir, log); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%q is taken: %q, %v", text, got, err)
		}
	}
}
