package wiring

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
)

// BrokerDir is the subdirectory of the data directory with the files for an external broker:
// ca.crt, broker.crt and broker.key.
const BrokerDir = "broker"

// brokerKeeper renews the files in BrokerDir. The operator must make the broker reload them
// (deploy/mosquitto/README.md).
func (id *identities) brokerKeeper(cfg BrokerConfig) (*keeper.Keeper, error) {
	var names []string
	for _, text := range slices.Concat(cfg.URL, cfg.Nodes, []string{cfg.Next}) {
		if u, err := url.Parse(text); err == nil && u.Hostname() != "" && !slices.Contains(names, u.Hostname()) {
			names = append(names, u.Hostname())
		}
	}
	sign := func(csr []byte) ([]*x509.Certificate, error) {
		return id.authority().SignServer(time.Now(), csr, names...)
	}
	return keeper.Own(keeper.Options{Save: id.saveBroker, Log: id.log.With("of", "broker")}, sign)
}

func (id *identities) saveBroker(p ca.Pair) error {
	if err := id.dir.Mkdir(BrokerDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the broker's directory: %w", err)
	}
	dir, err := id.dir.OpenRoot(BrokerDir)
	if err != nil {
		return fmt.Errorf("open the broker's directory: %w", err)
	}
	defer dir.Close()
	anchor, err := id.anchor(dir)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(p.Key)
	if err != nil {
		return fmt.Errorf("encode the broker's key: %w", err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return errors.Join(
		ca.WriteFile(dir, "ca.crt", anchor, 0o644),
		ca.WriteFile(dir, "broker.key", key, 0o600),
		ca.WriteFile(dir, "broker.crt", ca.EncodeChain(p.Chain), 0o644),
	)
}

// anchor returns the certificates that the broker trusts. That of a key of the cluster does not change. While the key is
// replaced, there are two.
func (id *identities) anchor(dir *os.Root) ([]byte, error) {
	authority := id.authority()
	var further []byte
	if f := id.anchors.Load(); f != nil {
		further = (*f)()
	}
	if text, err := dir.ReadFile("ca.crt"); err == nil {
		had, _ := ca.DecodeChain(text)
		for _, c := range had {
			if c.CheckSignatureFrom(authority.Pair().Chain[0]) == nil {
				return append(ca.EncodeChain([]*x509.Certificate{c}), further...), nil
			}
		}
	}
	cert, err := authority.Anchor(time.Now())
	if err != nil {
		return nil, err
	}
	return append(ca.EncodeChain([]*x509.Certificate{cert}), further...), nil
}
