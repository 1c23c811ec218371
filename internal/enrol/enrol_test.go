package enrol

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
)

func TestKeyOfAJoinIsKeptUntilItIsForgotten(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	print := func() string {
		t.Helper()
		key, err := Key(dir, "join.pem")
		if err != nil {
			t.Fatal(err)
		}
		text, err := Request(key)
		if err != nil {
			t.Fatal(err)
		}
		der, err := ParseRequest(text)
		if err != nil {
			t.Fatal(err)
		}
		if Text(der) != text || !bytes.Contains([]byte(text), []byte("CERTIFICATE REQUEST")) {
			t.Error("the request's text does not come back")
		}
		f, err := ca.Fingerprint(der)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first := print()
	if again := print(); again != first {
		t.Error("a repeated join has another key")
	}
	for range 2 {
		if err := Forget(dir, "join.pem"); err != nil {
			t.Fatal(err)
		}
	}
	if print() == first {
		t.Error("a new join has the key of the old one")
	}
	if _, err := ParseRequest("nonsense"); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("nonsense: %v", err)
	}
}
