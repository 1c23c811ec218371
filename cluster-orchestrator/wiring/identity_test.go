package wiring

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// An empty token in the file would authenticate requests with an empty token.
func TestShortOperatorTokenIsRefused(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	log := slog.New(slog.DiscardHandler)
	made, err := operatorToken(dir, log)
	if err != nil || len(made) < minOperatorToken {
		t.Fatalf("operatorToken returns %d bytes, %v; want at least %d", len(made), err, minOperatorToken)
	}
	if again, err := operatorToken(dir, log); err != nil || again != made {
		t.Errorf("the second start returns another token, or %v; want the same", err)
	}
	info, err := dir.Stat(OperatorFile)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("stat %s: %v, %v; want mode 0600", OperatorFile, info, err)
	}
	for _, text := range []string{"", "\n", "short\n"} {
		if err := dir.WriteFile(OperatorFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := operatorToken(dir, log); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("operatorToken with a file of %q returns %q, %v; want ErrInvalid", text, got, err)
		}
	}
}
