package seal_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/seal"
)

func open(t *testing.T, dir string, exists bool) (*seal.Sealer, error) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	w, err := seal.KeyFile(root, "secrets.key", exists)
	return seal.New(w), err
}

func TestValuesAreReadableWithTheirKeyAndLabelOnly(t *testing.T) {
	dir := t.TempDir()
	s, err := open(t, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "secrets.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v; want mode 0600", info, err)
	}
	v := seal.Salted(map[string][]byte{"password": []byte("marked-value")})
	sealed, err := s.Seal("secret/acme/db", v)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, []byte("marked")) {
		t.Error("the sealed value contains its text")
	}
	again, err := open(t, dir, true) // after a restart
	if err != nil {
		t.Fatal(err)
	}
	if got, err := again.Open("secret/acme/db", sealed); err != nil || !reflect.DeepEqual(got, v) {
		t.Errorf("opened as %d keys, %v; want the value", len(got.Data), err)
	}
	if _, err := again.Open("secret/evil/db", sealed); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("opened under another label: %v, want ErrInvalid", err)
	}
	sealed[len(sealed)-1] ^= 1
	if _, err := again.Open("secret/acme/db", sealed); err == nil {
		t.Error("a changed value was opened")
	}
	other, err := open(t, t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	sealed[len(sealed)-1] ^= 1
	if _, err := other.Open("secret/acme/db", sealed); err == nil {
		t.Error("a value was opened with another key")
	}
}

func TestAMissingOrReadableKeyFileIsAnError(t *testing.T) {
	dir := t.TempDir()
	if _, err := open(t, dir, true); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("missing key file: %v, want ErrNotFound", err)
	}
	if _, err := open(t, dir, false); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "secrets.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, dir, true); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("key file that others may read: %v, want ErrInvalid", err)
	}
}

func TestValuesAreHiddenInFormattedText(t *testing.T) {
	v := seal.Salted(map[string][]byte{"password": []byte("marked-value")})
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(format, v); bytes.Contains([]byte(s), []byte("marked")) || bytes.Contains([]byte(s), []byte("109 97 114")) {
			t.Errorf("%s shows %q", format, s)
		}
	}
}

func TestDigestsOfTheSameValueDiffer(t *testing.T) {
	data := map[string][]byte{"a": []byte("1")}
	if a, b := seal.Salted(data).Digest(), seal.Salted(data).Digest(); a == b {
		t.Error("two versions of the same value have the same digest, so that values can be guessed")
	}
	v := seal.Salted(data)
	other := v
	other.Data = map[string][]byte{"a": []byte("2")}
	if v.Digest() == other.Digest() {
		t.Error("two values with one salt have the same digest")
	}
}
