package enrol_test

import (
	"crypto/sha256"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
)

func TestKeyOfAJoinIsKeptUntilForget(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	token := jointoken.Token{
		URL: "https://root.test:7443", CA: sha256.Sum256([]byte("ca")), Scope: jointoken.ForCluster,
		Expires: time.Now().Add(time.Hour), Secret: make([]byte, 16),
	}
	fingerprint := func() string {
		t.Helper()
		c, err := enrol.Open(dir, token.Line(), jointoken.ForCluster)
		if err != nil {
			t.Fatal(err)
		}
		csr, key, err := enrol.ParseRequest(c.CSR)
		if err != nil {
			t.Fatal(err)
		}
		if enrol.EncodeRequest(csr) != c.CSR {
			t.Error("the PEM text of the parsed request differs")
		}
		return key
	}
	first := fingerprint()
	if fingerprint() != first {
		t.Error("a repeated join has another key")
	}
	for range 2 {
		if err := enrol.RemoveKey(dir); err != nil {
			t.Fatal(err)
		}
	}
	if fingerprint() == first {
		t.Error("a join after Forget has the old key")
	}
	if _, _, err := enrol.ParseRequest("nonsense"); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("ParseRequest of nonsense: %v, want ErrInvalid", err)
	}
	if _, err := enrol.Open(dir, token.Line(), jointoken.ForNode); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("Open for a node with a cluster's token: %v, want ErrInvalid", err)
	}
}
