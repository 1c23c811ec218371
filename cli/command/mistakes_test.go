package command_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/contexts"
)

// mistakes creates files with common mistakes.
func (r *rig) mistakes() {
	r.t.Helper()
	r.file("shelf.yaml", strings.ReplaceAll(shop, "shop", "shelf"))
	r.file("tab.yaml", "sla_version: v2.0\napplications:\n\t- application_name: shop\n")
	r.file("vcpu.yaml", strings.Replace(shop, "memory: 64", "cpus: 1", 1))
	r.file("giant.yaml", "# "+strings.Repeat("x", api.MaxSLABytes)+"\n"+shop)
	r.file("empty.yaml", "")
	r.file("cut.json", `{"sla_version": "v2.0", "applications": [`)
	r.file("notes.txt", "no certificate\n")
	r.file("other-ca.pem", otherCA(r))
	if err := os.Mkdir(filepath.Join(r.dir, "folder"), 0o700); err != nil {
		r.t.Fatal(err)
	}
	ca, err := os.ReadFile(r.ca())
	if err != nil {
		r.t.Fatal(err)
	}
	err = contexts.Open(filepath.Join(r.dir, "expired.yaml")).Update(func(all *contexts.All) error {
		at := contexts.Context{URL: r.url, CA: string(ca)}
		at.SetSession(api.Session{User: "admin", Access: "old", Refresh: "used", Expires: time.Unix(0, 0)})
		all.Contexts["home"], all.Current = at, "home"
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// otherCA returns the file of a CA that is not the root's.
func otherCA(r *rig) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		r.t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
