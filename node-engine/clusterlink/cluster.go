package clusterlink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	requestTimeout = 30 * time.Second
	volumeTimeout  = 5 * time.Minute // for some calls of the driver, each with a timeout of its own
	// idleTimeout is short, so that an idle node keeps only its connection to the broker.
	idleTimeout = 5 * time.Second
)

// Cluster is a client of the cluster's HTTP API for nodes.
type Cluster struct {
	HTTP *http.Client // with the node's certificate; it sends requests to the active replica
	URL  string       // https://host:port

	replicas *replicas.Addresses
}

// takeover is how long requests wait for a replica of the cluster to become active.
const takeover = 8 * time.Second

// NewCluster returns a client that authenticates with the certificate that own returns. further are URLs
// of the cluster besides those in the credentials.
func NewCluster(v *trust.Verifier, c Credentials, own func(*tls.CertificateRequestInfo) (*tls.Certificate, error), further ...string) *Cluster {
	// Without an answer streams end, and with them the processes of users. There are no pings while
	// there is no stream, because the connection is closed then.
	pings := &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 15 * time.Second}
	all := replicas.New(append([]string{c.URL}, further...)...)
	all.Learn(c.Replicas)
	client := keeper.Client(v, identity.OfCluster(c.Cluster), own, idleTimeout, pings)
	client.Transport = all.Transport(client.Transport, takeover)
	return &Cluster{HTTP: client, URL: c.URL, replicas: all}
}

// Learn replaces the URLs of the cluster's replicas with those that the cluster itself has sent, and reports
// whether they changed.
func (c *Cluster) Learn(urls []string) bool { return c.replicas.Learn(urls) }

// prefer makes a replica the first one to which requests are sent.
func (c *Cluster) prefer(replica string) {
	for _, u := range replicas.Clean([]string{replica}) {
		c.replicas.Prefer(u)
	}
}

func (c *Cluster) post(ctx context.Context, path string, in, out any) error {
	return c.postWithin(ctx, requestTimeout, path, in, out)
}

func (c *Cluster) postWithin(ctx context.Context, timeout time.Duration, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return call.JSON(ctx, c.HTTP, c.URL+"/v1/node/"+path, in, out)
}

// ShouldPurge asks the cluster whether this node is to be purged. failed is the error of the last
// attempt to purge, or empty.
func (c *Cluster) ShouldPurge(ctx context.Context, failed string) (bool, error) {
	var out wire.NodePurge
	if err := c.post(ctx, "purge", wire.NodePurging{Failed: failed}, &out); err != nil {
		return false, fmt.Errorf("ask the cluster whether to purge this node: %w", err)
	}
	return out.Purge, nil
}

// ReportPurged reports to the cluster that this node was purged. It succeeds if the cluster has removed
// the node already.
func (c *Cluster) ReportPurged(ctx context.Context) error {
	err := c.post(ctx, "left", struct{}{}, nil)
	if p, ok := errors.AsType[*api.Problem](err); ok && p.Status == http.StatusForbidden {
		return nil // the cluster has removed the node
	}
	if err != nil {
		return fmt.Errorf("report to the cluster that this node was purged: %w", err)
	}
	return nil
}

// Value requests a config or secret that a workload of this node needs. It fails with ErrNotFound if
// the cluster does not have it for this node.
func (c *Cluster) Value(ctx context.Context, w wire.WantValue) (v wire.Value, err error) {
	err = c.post(ctx, "value", w, &v)
	return v, err
}

// AttachVolume has the cluster attach a CSI volume to this node. The errors are those of the driver, and
// ErrNotFound if the cluster does not have the placement here.
func (c *Cluster) AttachVolume(ctx context.Context, w wire.WantVolume) (v wire.VolumeAttached, err error) {
	err = c.postWithin(ctx, volumeTimeout, "volumes/attach", w, &v)
	return v, err
}

// DetachVolume reports that nothing of a CSI volume is mounted on this node any more.
func (c *Cluster) DetachVolume(ctx context.Context, w wire.WantVolume) error {
	return c.postWithin(ctx, volumeTimeout, "volumes/detach", w, nil)
}

// Brokers returns the addresses of the cluster's broker, for a node that can reach none of the
// addresses it has.
func (c *Cluster) Brokers(ctx context.Context) ([]string, error) {
	var out wire.NodeBrokers
	if err := c.post(ctx, "brokers", struct{}{}, &out); err != nil {
		return nil, fmt.Errorf("ask the cluster for its broker: %w", err)
	}
	return out.Brokers, nil
}

func (c *Cluster) Renew(ctx context.Context, csr []byte) ([]*x509.Certificate, error) {
	var renewed wire.NodeJoined
	if err := c.post(ctx, "renew", wire.Renew{CSR: enrol.EncodeRequest(csr)}, &renewed); err != nil {
		return nil, err
	}
	return ca.DecodeChain([]byte(renewed.Chain))
}
