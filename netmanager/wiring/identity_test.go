package wiring

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

func TestCredentialsAreReadAgainOnceTheyAreReplaced(t *testing.T) {
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
	cluster := must[*ca.Authority](t)(ca.New(ca.Pair{Chain: must[[]*x509.Certificate](t)(root.SignCluster(time.Now(), csr, clusterID)), Key: key}))
	sign := func() {
		t.Helper()
		key, csr := request()
		chain := must[[]*x509.Certificate](t)(cluster.SignNode(time.Now(), csr, "n1"))
		if err := ca.SavePair(dir, pairFile, ca.Pair{Chain: chain, Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	sign()
	r := renewal{path: path, now: must[credentials](t)(loadCredentials(path))}
	look := func(want bool) {
		t.Helper()
		if anew, err := r.look(); err != nil || anew != want {
			t.Errorf("renewed: %t, %v, want %t", anew, err, want)
		}
	}
	look(false)

	file := filepath.Join(path, pairFile) // what is not read does no harm
	text, info := must[[]byte](t)(os.ReadFile(file)), must[os.FileInfo](t)(os.Stat(file))
	write := func(text []byte) {
		t.Helper()
		if err := errors.Join(os.WriteFile(file, text, 0o600), os.Chtimes(file, time.Time{}, info.ModTime())); err != nil {
			t.Fatal(err)
		}
	}
	write([]byte("nobody looks"))
	look(false)
	write(text)

	sign()
	look(true)
	look(false)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for range 2 { // said each time
		if _, err := r.look(); !errors.Is(err, api.ErrNotFound) {
			t.Error("a certificate that is gone: ", err)
		}
	}
	sign()
	look(true)
}
