// Package credentials reads the node's identity: its key on the overlay network, which it
// creates, and the certificate that the node engine keeps.
package credentials

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/proof"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
)

const keyFile = "overlay.key"

// OverlayKey reads the node's key on the overlay network from dir, or creates it there.
func OverlayKey(dir *os.Root) (*ecdh.PrivateKey, error) {
	text, err := dir.ReadFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		k, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("create the overlay key: %w", err)
		}
		text := base64.StdEncoding.EncodeToString(k.Bytes()) + "\n"
		return k, ca.WriteFile(dir, keyFile, []byte(text), 0o600)
	}
	var raw []byte
	var k *ecdh.PrivateKey
	if err == nil {
		raw, err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	}
	if err == nil {
		k, err = ecdh.X25519().NewPrivateKey(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("read the overlay key %s in %s: %w", keyFile, dir.Name(), err)
	}
	return k, nil
}

// The files in the node engine's data directory that contain the node's identity. They are part of
// the node engine's contract with this daemon.
const (
	pairFile = "node.pem"
	metaFile = "node.json"
)

// Credentials are the node's credentials from the data directory of its node engine.
type Credentials struct {
	ID      api.NodeID    `json:"id"`
	Cluster api.ClusterID `json:"cluster"`
	URL     string        `json:"url"` // of the cluster
	Pair    ca.Pair       `json:"-"`
}

// Load reads the credentials from the node engine's data directory. It fails with ErrNotFound if
// the node has not joined a cluster.
func Load(path string) (c Credentials, err error) {
	dir, err := os.OpenRoot(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("node engine's data directory %s: %w", path, api.ErrNotFound)
	}
	if err != nil {
		return c, fmt.Errorf("open the node engine's data directory: %w", err)
	}
	defer dir.Close()
	text, err := dir.ReadFile(metaFile) // a join writes this file last
	if errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("this node has not joined a cluster: %w", api.ErrNotFound)
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return c, fmt.Errorf("read the node's credentials: %w", err)
	}
	c.Pair, err = ca.LoadPair(dir, pairFile)
	return c, err
}

const (
	joinInterval  = time.Second // between checks whether the node has joined
	renewInterval = time.Minute // between checks whether the certificate was renewed
)

// Await waits until the node has joined, and returns its credentials.
func Await(ctx context.Context, path string, log *slog.Logger) (Credentials, error) {
	logged := false
	for {
		c, err := Load(path)
		if !errors.Is(err, api.ErrNotFound) {
			return c, err
		}
		if !logged {
			log.Info("waiting for the node engine to join", "data", path)
			logged = true
		}
		select {
		case <-time.After(joinInterval):
		case <-ctx.Done():
			return c, ctx.Err()
		}
	}
}

// Watch calls renewed after each renewal of the certificate, until ctx ends.
func Watch(ctx context.Context, path string, now Credentials, log *slog.Logger, renewed func(Credentials)) {
	tick := time.NewTicker(renewInterval)
	defer tick.Stop()
	last := watched{path: path, now: now}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		switch changed, err := last.check(); {
		case err != nil:
			log.Warn("read the node's certificate failed", "err", err)
		case changed:
			renewed(last.now)
		}
	}
}

// watched has the newest credentials, and the file that they were read from.
type watched struct {
	path string
	now  Credentials
	file fs.FileInfo // nil: not read yet
}

// check reports whether there are newer credentials. It reads only a file that was replaced:
// parsing certificates each minute costs 3 MiB of resident memory.
func (r *watched) check() (changed bool, _ error) {
	file, err := os.Stat(filepath.Join(r.path, pairFile)) // before the read, so that a later replacement is detected
	if err == nil && r.file != nil && os.SameFile(file, r.file) && file.ModTime().Equal(r.file.ModTime()) {
		return false, nil
	}
	c, err := Load(r.path)
	if err != nil {
		return false, err
	}
	changed = !c.Pair.Chain[0].Equal(r.now.Pair.Chain[0])
	r.now, r.file = c, file
	return changed, nil
}

// Self returns the node's identity for its reports, without its endpoints.
func (c Credentials) Self(key api.PeerKey) (wire.NetSelf, error) {
	sig, err := proof.Sign(c.Pair.Key, key)
	if err != nil {
		return wire.NetSelf{}, err
	}
	self := wire.NetSelf{Key: key, Proof: sig}
	self.Chain = c.Pair.TLS(false).Certificate // every node has a root certificate
	return self, nil
}

// Verifier checks other nodes' certificates against the roots of the node's own chain.
func (c Credentials) Verifier() *trust.Verifier {
	v := trust.New()
	v.Learn(c.Pair.Chain)
	return v
}
