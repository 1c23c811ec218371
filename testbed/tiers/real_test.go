package tiers

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// realRoot is a running root orchestrator with its first admin.
type realRoot struct {
	*life
	cfg   root.Config
	url   string
	admin *client.Client
	token string // the admin's
}

func startRoot(t *testing.T, with func(*root.Config)) *realRoot {
	t.Helper()
	r := &realRoot{cfg: root.Defaults()}
	r.cfg.Data, r.cfg.Listen = filepath.Join(t.TempDir(), "root"), "127.0.0.1:0"
	with(&r.cfg)
	check(t, r.cfg.Validate())
	r.life = begin(t, func(ctx context.Context) error { return root.Run(ctx, r.cfg, quiet(t)) })
	r.url = "https://" + strings.TrimSpace(wait(t, filepath.Join(r.cfg.Data, root.AddressFile)))
	user, code, _ := strings.Cut(strings.TrimSpace(wait(t, filepath.Join(r.cfg.Data, root.SignInFile))), " ")
	connect := func(tokens client.Tokens) *client.Client {
		c, err := client.New(client.Options{URL: r.url, CA: []byte(wait(t, filepath.Join(r.cfg.Data, root.CAFile))), Tokens: tokens})
		check(t, err)
		t.Cleanup(c.Close)
		return c
	}
	s, err := connect(nil).Redeem(t.Context(), api.Redeem{User: user, Code: code, Password: "correct horse battery"})
	check(t, err)
	r.token = s.Access
	r.admin = connect(client.Static(s.Access))
	return r
}

func (r *realRoot) anchor(t *testing.T) *x509.Certificate {
	t.Helper()
	return anchorOf(t, r.cfg.Data)
}

// anchorOf returns the CA certificate of the root with the data directory.
func anchorOf(t *testing.T, data string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(data, root.CAFile))
	check(t, err)
	b, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(b.Bytes)
	check(t, err)
	return cert
}

// eventually polls until ok returns true, because stores of daemons have no events.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the state was not reached in time: %s", what)
		}
	}
}
