// Package identity defines the identity of a machine (the root, a cluster or a node) as a URI in
// its certificate. Package ca signs certificates, trust verifies peers, keeper renews
// certificates; account, jwt and rights are for users and robots.
//
//	id, err := identity.Of(cert) // treeline://cluster/munich/node/n7
//	id.Cluster, id.Node          // "munich", "n7"
package identity

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

type Kind string

const (
	Root    Kind = "root"
	Cluster Kind = "cluster"
	Node    Kind = "node"
)

// Scheme is the scheme of an identity's URI.
const Scheme = "treeline"

// ClusterCN is the common name of a cluster's own certificates. Brokers that read common names
// only (Mosquitto's use_identity_as_username) distinguish a cluster from its nodes by it.
// Therefore no node may have this name.
const ClusterCN = "cluster"

// Identity names one machine. The zero value names none.
type Identity struct {
	Kind    Kind
	Cluster api.ClusterID // of a cluster or a node
	Node    api.NodeID    // of a node
}

func OfRoot() Identity { return Identity{Kind: Root} }

func OfCluster(c api.ClusterID) Identity { return Identity{Kind: Cluster, Cluster: c} }

func OfNode(c api.ClusterID, n api.NodeID) Identity {
	return Identity{Kind: Node, Cluster: c, Node: n}
}

// String returns the identity's URI, "" for the zero value.
func (i Identity) String() string {
	switch i.Kind {
	case Root:
		return Scheme + "://root"
	case Cluster:
		return Scheme + "://cluster/" + string(i.Cluster)
	case Node:
		return Scheme + "://cluster/" + string(i.Cluster) + "/node/" + string(i.Node)
	}
	return ""
}

// URL returns the identity's URI for certificates.
func (i Identity) URL() *url.URL {
	if i.Kind == Root {
		return &url.URL{Scheme: Scheme, Host: "root"}
	}
	_, path, _ := strings.Cut(i.String(), "://cluster")
	return &url.URL{Scheme: Scheme, Host: "cluster", Path: path}
}

// CommonName returns the common name of a certificate's subject: "root", "cluster", or the
// node's id.
func (i Identity) CommonName() string {
	if i.Kind == Node {
		return string(i.Node)
	}
	return string(i.Kind)
}

// MayIssue reports whether an authority of identity i may sign for o: the root for itself and
// clusters, a cluster for itself and its own nodes.
func (i Identity) MayIssue(o Identity) bool {
	switch i.Kind {
	case Root:
		return o.Kind == Root || o.Kind == Cluster
	case Cluster:
		return o.Cluster == i.Cluster && (o.Kind == Cluster || o.Kind == Node)
	}
	return false
}

// Parse parses an identity's URI. Anything but the exact form is ErrInvalid.
func Parse(s string) (Identity, error) {
	var id Identity
	rest, ok := strings.CutPrefix(s, Scheme+"://")
	switch p := strings.Split(rest, "/"); {
	case !ok:
	case rest == "root":
		id = OfRoot()
	case len(p) == 2 && p[0] == "cluster":
		id = OfCluster(api.ClusterID(p[1]))
	case len(p) == 4 && p[0] == "cluster" && p[2] == "node":
		id = OfNode(api.ClusterID(p[1]), api.NodeID(p[3]))
	}
	if err := id.Check(); err != nil {
		return Identity{}, fmt.Errorf("identity %q is not treeline://root, …/cluster/<id> or …/cluster/<id>/node/<id>: %w", s, api.ErrInvalid)
	}
	return id, nil
}

// Check fails with ErrInvalid if the identity is incomplete or a name is not allowed.
func (i Identity) Check() error {
	cluster := api.ValidMachineName(string(i.Cluster))
	node := api.ValidMachineName(string(i.Node)) && i.Node != ClusterCN
	ok := i.Kind == Root && i.Cluster == "" && i.Node == "" ||
		i.Kind == Cluster && cluster && i.Node == "" ||
		i.Kind == Node && cluster && node
	if !ok {
		return fmt.Errorf("identity of kind %q, cluster %q, node %q: names are DNS labels in lower case, and no node is called %q: %w",
			i.Kind, i.Cluster, i.Node, ClusterCN, api.ErrInvalid)
	}
	return nil
}

// Of returns the identity in a certificate. It fails with ErrUnauthenticated if the certificate
// has no identity, several, or another common name.
func Of(cert *x509.Certificate) (Identity, error) {
	if len(cert.URIs) != 1 {
		return Identity{}, fmt.Errorf("certificate of %q has %d identities, want one: %w",
			cert.Subject.CommonName, len(cert.URIs), api.ErrUnauthenticated)
	}
	id, err := Parse(cert.URIs[0].String())
	if err != nil {
		return Identity{}, fmt.Errorf("certificate of %q: %w: %w", cert.Subject.CommonName, err, api.ErrUnauthenticated)
	}
	if !cert.IsCA && cert.Subject.CommonName != id.CommonName() {
		return Identity{}, fmt.Errorf("certificate of %q has the common name %q: %w", id, cert.Subject.CommonName, api.ErrUnauthenticated)
	}
	return id, nil
}
