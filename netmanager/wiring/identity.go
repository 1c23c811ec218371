package wiring

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
)

const keyFile = "overlay.key"

// overlayKey is the node's key on the overlay network, kept in dir.
func overlayKey(dir *os.Root) (*ecdh.PrivateKey, error) {
	text, err := dir.ReadFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		k, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("make the overlay key: %w", err)
		}
		text := base64.StdEncoding.EncodeToString(k.Bytes()) + "\n"
		return k, ca.WriteFile(dir, keyFile, []byte(text), 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("read the overlay key: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("read the overlay key in %s: %w", dir.Name(), err)
	}
	k, err := ecdh.X25519().NewPrivateKey(raw)
	if err != nil {
		return nil, fmt.Errorf("read the overlay key in %s: %w", dir.Name(), err)
	}
	return k, nil
}

// The files of the node engine's data directory that say who the node is. They
// are its contract with this daemon, as the socket is.
const (
	pairFile = "node.pem"
	metaFile = "node.json"
)

// credentials are the node's, as its engine keeps them.
type credentials struct {
	ID      api.NodeID    `json:"id"`
	Cluster api.ClusterID `json:"cluster"`
	URL     string        `json:"url"` // of the cluster
	pair    ca.Pair
}

// loadCredentials reads them; ErrNotFound where the node has not joined.
func loadCredentials(path string) (c credentials, err error) {
	dir, err := os.OpenRoot(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("the node engine's data directory %s: %w", path, api.ErrNotFound)
	}
	if err != nil {
		return c, fmt.Errorf("open the node engine's data directory: %w", err)
	}
	defer dir.Close()
	text, err := dir.ReadFile(metaFile) // the last that a join writes
	if errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("this node has not joined a cluster: %w", api.ErrNotFound)
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return c, fmt.Errorf("read the node's credentials: %w", err)
	}
	c.pair, err = ca.LoadPair(dir, pairFile)
	return c, err
}

const (
	joinPause  = time.Second // between looks for credentials, until there are some
	renewPause = time.Minute // between looks whether they were renewed
)

// awaitCredentials waits until the node has joined.
func awaitCredentials(ctx context.Context, path string, log *slog.Logger) (credentials, error) {
	said := false
	for {
		c, err := loadCredentials(path)
		if !errors.Is(err, api.ErrNotFound) {
			return c, err
		}
		if !said {
			log.Info("waiting for the node engine to join", "data", path)
			said = true
		}
		select {
		case <-time.After(joinPause):
		case <-ctx.Done():
			return c, ctx.Err()
		}
	}
}

// watchCredentials tells of each renewal.
func watchCredentials(ctx context.Context, path string, now credentials, log *slog.Logger, renewed func(credentials)) {
	tick := time.NewTicker(renewPause)
	defer tick.Stop()
	last := renewal{path: path, now: now}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		switch anew, err := last.look(); {
		case err != nil:
			log.Warn("the node's certificate cannot be read", "err", err)
		case anew:
			renewed(last.now)
		}
	}
}

// renewal knows the newest credentials, and the file that they are of.
type renewal struct {
	path string
	now  credentials
	file fs.FileInfo // nil: not read yet
}

// look reports whether there are newer ones. A file that nobody replaced is not read: to
// look through certificates each minute brought three MiB of the program into memory.
func (r *renewal) look() (anew bool, _ error) {
	file, err := os.Stat(filepath.Join(r.path, pairFile)) // first: what is replaced meanwhile is read the next time
	if err == nil && r.file != nil && os.SameFile(file, r.file) && file.ModTime().Equal(r.file.ModTime()) {
		return false, nil
	}
	c, err := loadCredentials(r.path)
	if err != nil {
		return false, err
	}
	anew = !c.pair.Chain[0].Equal(r.now.pair.Chain[0])
	r.now, r.file = c, file
	return anew, nil
}

// says is what the node says of itself, but for where it is.
func (c credentials) says(key api.PeerKey) (api.NetSelf, error) {
	sig, err := proof.Sign(c.pair.Key, key)
	if err != nil {
		return api.NetSelf{}, err
	}
	self := api.NetSelf{Key: key, Proof: sig}
	for _, cert := range c.pair.Chain[:len(c.pair.Chain)-1] { // the root's everybody has
		self.Chain = append(self.Chain, cert.Raw)
	}
	return self, nil
}

// verifier checks what other nodes show against the root of the node's own chain.
func (c credentials) verifier() *trust.Verifier { return trust.New(c.pair.Root()) }
