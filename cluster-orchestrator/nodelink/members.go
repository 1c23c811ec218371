package nodelink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/roots"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/store"
)

// KindMember is the kind of Members' documents in a store.
const KindMember = "member"

// Members are the nodes that have joined and were not removed. Only their certificates are
// accepted, and only those issued since the name was last assigned, so that names can be reused.
// It is safe for concurrent use.
type Members struct {
	cluster  api.ClusterID
	verifier *trust.Verifier
	table    *docs.Table[member]
}

type member struct {
	Node  api.NodeID `json:"node"`
	Since time.Time  `json:"since"` // certificates made at this time or later are accepted
	Key   string     `json:"key"`   // fingerprint of the key with which the node joined
	// Issuer is the newest generation of the cluster's authority with a certificate of which the node connected.
	Issuer identity.Generation `json:"issuer,omitzero"`
}

func NewMembers(st store.Store, loaded []store.Doc, c api.ClusterID, v *trust.Verifier) (*Members, error) {
	m := &Members{cluster: c, verifier: v, table: docs.New[member](KindMember, st)}
	return m, m.table.Load(loaded)
}

// Node returns the member that opened a connection. It returns ErrUnauthenticated or
// ErrForbidden for a peer that is not a member.
func (m *Members) Node(cs tls.ConnectionState) (api.NodeID, error) {
	id, err := m.verifier.Peer(cs)
	if err != nil {
		return "", err
	}
	if id.Kind != identity.Node || id.Cluster != m.cluster {
		return "", fmt.Errorf("%s is not a node of cluster %s: %w", id, m.cluster, api.ErrForbidden)
	}
	known, ok := m.table.Get(string(id.Node))
	if !ok {
		return "", fmt.Errorf("node %s was removed from cluster %s; it may join again with a new token: %w", id.Node, m.cluster, api.ErrForbidden)
	}
	if ca.IssuedAt(cs.PeerCertificates[0]).Before(known.Since) {
		return "", fmt.Errorf("certificate of node %s is of an earlier node with this name: %w", id.Node, api.ErrForbidden)
	}
	m.note(id.Node, known, cs.PeerCertificates)
	return id.Node, nil
}

const noteTime = 10 * time.Second // to save the generation of a node's certificate

// note records that a node uses a certificate of a newer generation of the authority. If it cannot, the next connection
// repeats it. A node that shows another certificate than that of its issuer loses only its own access.
func (m *Members) note(n api.NodeID, known member, chain []*x509.Certificate) {
	if len(chain) < 2 {
		return
	}
	g, err := identity.GenerationOf(chain[1])
	if err != nil || !known.Issuer.Before(g) {
		return
	}
	// A node of an earlier release shows the root's newest certificate, too, because it trusts the last one of its chain only. It would
	// lose its access when the key of that one is retired.
	if slices.ContainsFunc(chain[2:], roots.Is) {
		g.Root, g.RootOldest = known.Issuer.Root, known.Issuer.RootOldest
	}
	if !known.Issuer.Before(g) || chain[0].CheckSignatureFrom(chain[1]) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), noteTime)
	defer cancel()
	_ = m.table.Update(ctx, string(n), func(old member, ok bool) (member, error) {
		if !ok || !old.Issuer.Before(g) {
			return old, errKnown
		}
		old.Issuer = g
		return old, nil
	})
}

var errKnown = errors.New("known")

// Behind returns the members that have not connected with a certificate of a generation of the authority, and the
// generation that each has, in the order of their ids.
func (m *Members) Behind(g identity.Generation) []api.AuthorityBehind {
	var all []api.AuthorityBehind
	for _, v := range m.table.All() {
		if v.Issuer.Before(g) {
			all = append(all, api.AuthorityBehind{Node: v.Node, Generation: v.Issuer.Key})
		}
	}
	return all
}

// holds reports whether the name is taken, and the fingerprint of the key that has it.
func (m *Members) holds(n api.NodeID) (key string, taken bool) {
	known, ok := m.table.Get(string(n))
	return known.Key, ok
}

// admit makes the node a member. The same key may be admitted again; for another key it
// returns ErrConflict.
func (m *Members) admit(ctx context.Context, n api.NodeID, key string, now time.Time) error {
	return m.table.Update(ctx, string(n), func(old member, ok bool) (member, error) {
		if ok && old.Key != key {
			return old, taken(n)
		}
		if ok {
			return old, nil
		}
		// Times in certificates have a resolution of one second.
		return member{Node: n, Since: now.Truncate(time.Second), Key: key}, nil
	})
}

func taken(n api.NodeID) error {
	return fmt.Errorf("node %s exists; choose another name, or remove that node first: %w", n, api.ErrConflict)
}

// Has reports whether the node has joined and was not removed.
func (m *Members) Has(n api.NodeID) bool {
	_, ok := m.holds(n)
	return ok
}

// All returns the members in the order of their ids.
func (m *Members) All() []api.NodeID {
	var all []api.NodeID
	for _, v := range m.table.All() {
		all = append(all, v.Node)
	}
	return all
}

// Remove removes a member: all its certificates are refused.
func (m *Members) Remove(ctx context.Context, n api.NodeID) error {
	return m.table.Delete(ctx, string(n))
}
