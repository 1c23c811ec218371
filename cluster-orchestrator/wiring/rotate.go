package wiring

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rootlink"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rotation"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/storemark"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// recheckPause is between two connections that are ended because their key was retired.
const recheckPause = 10 * time.Millisecond

// adopt takes the authority's key in the store, if it is newer than the one in the files, before anything uses them. before
// is the certificate of the key before; nil: there was none.
func (o *orchestrator) adopt(ctx context.Context, dir *os.Root, docs []store.Doc, creds rootlink.Credentials) (_ rootlink.Credentials, before *x509.Certificate, err error) {
	keys, err := seal.KeyFile(dir, valuesKeyFile, false)
	if err != nil {
		return creds, nil, err
	}
	creds, before, changed, err := rotation.Adopt(time.Now(), docs, creds, seal.New(keys))
	if err != nil || !changed {
		return creds, before, err
	}
	o.log.Warn("the key of the cluster's certificate authority was replaced by another process or before a crash; using the one in the store")
	if o.id != nil { // a replica that was a standby
		return creds, before, o.id.replace(ctx, creds.Pair, o.outer)
	}
	return creds, before, creds.Save(dir)
}

// openRotation opens the rotation of the authority's key.
func (o *orchestrator) openRotation(st store.Store, docs []store.Doc) (err error) {
	opt := rotation.Options{
		Store: st, Loaded: docs, Sealer: o.id.sealer, Credentials: o.id.credentials, Log: o.log, Now: time.Now,
		Use: func(ctx context.Context, c rootlink.Credentials) error {
			if err := o.id.replace(ctx, c.Pair, o.outer); err != nil {
				return err
			}
			return storemark.Replace(ctx, st, c.Pair.Chain[0])
		},
		Rotate: func(ctx context.Context, c rootlink.Credentials, key crypto.Signer) (rootlink.Credentials, error) {
			return c.Rotate(ctx, o.client, key)
		},
		Retire: func(ctx context.Context, c rootlink.Credentials) (rootlink.Credentials, error) {
			return c.Retire(ctx, o.client)
		},
		Behind: o.nodes.members.Behind, Connected: o.connected,
		Renew: func(ctx context.Context, n api.NodeID) error {
			body, err := o.nodes.Stream(ctx, n, wire.StreamRequest{Kind: wire.StreamRenew})
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, body)
			return errors.Join(err, body.Close())
		},
		Retired: func(ctx context.Context) {
			if o.broker != nil {
				go o.broker.Recheck(context.WithoutCancel(ctx), recheckPause)
			}
		},
	}
	if o.outer != nil {
		opt.Announce, opt.Trusted = o.outer.Renew, o.brokersTrust
	}
	if o.rotation, err = rotation.New(opt); err != nil {
		return err
	}
	anchors := o.rotation.Anchors
	o.id.anchors.Store(&anchors)
	return nil
}

// connected returns the nodes that can be asked to dial out.
func (o *orchestrator) connected(ctx context.Context) (all []api.NodeID, err error) {
	err = o.loop.Read(ctx, func() {
		for _, n := range o.core.Nodes() {
			if n.Status != api.NodeJoining && n.Status != api.NodeSilent {
				all = append(all, n.ID)
			}
		}
	})
	return all, err
}

const brokerTime = 5 * time.Second // for a broker to answer

// refusedConnect is a CONNECT of MQTT with a version of the protocol that does not exist. A broker refuses it before it
// looks at the client id, with which it would end the cluster's connection.
var refusedConnect = []byte{0x10, 13, 0, 4, 'M', 'Q', 'T', 'T', 0x7f, 2, 0, 10, 0, 1, 'r'}

// brokersTrust returns an error until all external brokers accept certificates that the pair's authority has signed.
func (o *orchestrator) brokersTrust(ctx context.Context, pair ca.Pair) error {
	authority, err := ca.New(pair)
	if err != nil {
		return err
	}
	key, csr, err := ca.NewRequest()
	if err != nil {
		return err
	}
	chain, err := authority.WithLife(time.Hour).SignOwn(time.Now(), csr)
	if err != nil {
		return err
	}
	own := (ca.Pair{Chain: chain, Key: key}).TLS(false)
	conf := o.id.verifier.Client(identity.OfCluster(o.id.info().ID), func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil })
	for _, at := range o.cfg.Broker.URL {
		addr, err := brokerAddr(at)
		if err == nil {
			err = brokerAccepts(ctx, addr, conf)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func brokerAccepts(ctx context.Context, addr string, conf *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, brokerTime)
	defer cancel()
	fail := func(err error) error {
		return fmt.Errorf("the broker at %s does not accept certificates of the new key yet; copy ca.crt from %s in the data directory to it, and restart it: %w: %w",
			addr, BrokerDir, err, api.ErrUnavailable)
	}
	d := tls.Dialer{NetDialer: &net.Dialer{}, Config: conf}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return fail(err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(refusedConnect); err != nil {
		return fail(err)
	}
	// With TLS 1.3, a refused certificate shows when the answer is read.
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return fail(err)
	}
	return nil
}
