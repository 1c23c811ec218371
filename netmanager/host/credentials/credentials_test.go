package credentials

import (
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
)

func TestReplacedCredentialsAreReadAgain(t *testing.T) {
	path := t.TempDir()
	dir := must[*os.Root](t)(os.OpenRoot(path))
	defer dir.Close()
	if err := ca.WriteFile(dir, metaFile, []byte(`{"id":"n1","cluster":"munich"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	root := must[*ca.Authority](t)(ca.NewRoot(time.Now()))
	request := func() (*ecdsa.PrivateKey, []byte) {
		t.Helper()
		key, csr, err := ca.NewRequest()
		if err != nil {
			t.Fatal(err)
		}
		return key, csr
	}
	key, csr := request()
	cluster := must[*ca.Authority](t)(ca.New(ca.Pair{Chain: must[[]*x509.Certificate](t)(root.SignCluster(time.Now(), csr, "munich")), Key: key}))
	sign := func() {
		t.Helper()
		key, csr := request()
		chain := must[[]*x509.Certificate](t)(cluster.SignNode(time.Now(), csr, "n1"))
		if err := ca.SavePair(dir, pairFile, ca.Pair{Chain: chain, Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	sign()
	r := watched{path: path, now: must[Credentials](t)(Load(path))}
	look := func(want bool) {
		t.Helper()
		if changed, err := r.check(); err != nil || changed != want {
			t.Errorf("check() = %t, %v, want %t", changed, err, want)
		}
	}
	look(false)

	file := filepath.Join(path, pairFile) // an unchanged file is not read
	text, info := must[[]byte](t)(os.ReadFile(file)), must[os.FileInfo](t)(os.Stat(file))
	write := func(text []byte) {
		t.Helper()
		if err := errors.Join(os.WriteFile(file, text, 0o600), os.Chtimes(file, time.Time{}, info.ModTime())); err != nil {
			t.Fatal(err)
		}
	}
	write([]byte("not read"))
	look(false)
	write(text)

	sign()
	look(true)
	look(false)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for range 2 { // reported each time
		if _, err := r.check(); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("check() of a deleted certificate = %v, want ErrNotFound", err)
		}
	}
	sign()
	look(true)
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
