package clusterlink

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	askedTogether = 16      // clusters that are asked at the same time which keys they use
	maxKeysReport = 4 << 10 // bytes of an answer
)

// rootKeys returns which keys the root has.
func (l *Link) rootKeys() wire.RootKeys {
	g, err := l.opt.Authority().Pair().RootGeneration()
	if err != nil {
		return wire.RootKeys{}
	}
	return wire.RootKeys{Key: g.Root, Oldest: g.RootOldest}
}

// signed reports whether a key of the root that is not retired has signed the certificate.
func (l *Link) signed(c *x509.Certificate) bool {
	return slices.ContainsFunc(l.opt.Authority().Pair().Roots(), func(r *x509.Certificate) bool { return c.CheckSignatureFrom(r) == nil })
}

// RootKeysChanged sends connected clusters which keys the root has.
func (l *Link) RootKeysChanged() {
	m := message{event: "authority", data: l.rootKeys()}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.push(m)
	}
}

// EndStreams ends the streams of all clusters. Those with a certificate that is not valid any more cannot connect again.
func (l *Link) EndStreams() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.close()
	}
}

// RootKeysBehind asks the clusters which keys of the root they and their nodes use, and returns those that are behind k, in the order
// of their names.
func (l *Link) RootKeysBehind(ctx context.Context, clusters []api.ClusterID, k wire.RootKeys) []api.ClusterBehind {
	var mu sync.Mutex
	var all []api.ClusterBehind
	var asked errgroup.Group
	asked.SetLimit(askedTogether)
	for _, id := range clusters {
		asked.Go(func() error {
			if b, behind := l.keysOf(ctx, id, k); behind {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, b)
			}
			return nil
		})
	}
	_ = asked.Wait()
	slices.SortFunc(all, func(a, b api.ClusterBehind) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return all
}

func (l *Link) keysOf(ctx context.Context, id api.ClusterID, k wire.RootKeys) (b api.ClusterBehind, behind bool) {
	b.Cluster = id
	r, err := l.askKeys(ctx, id)
	if err != nil {
		b.Error = err.Error()
		return b, true
	}
	return standing(id, r, k)
}

// standing returns the valid part of a cluster's report, and whether the cluster or a node of it has no certificate of the keys k. A
// cluster that reports newer keys than it has harms itself alone: its certificates are refused once the earlier key is retired.
func standing(id api.ClusterID, r wire.RootKeysReport, k wire.RootKeys) (b api.ClusterBehind, behind bool) {
	b.Cluster, b.Generation, b.Nodes = id, min(r.Root.Key, k.Key), max(0, r.Behind)
	for _, n := range r.Nodes[:min(len(r.Nodes), wire.MaxBehindNodes)] {
		if api.ValidMachineName(string(n)) {
			b.Names = append(b.Names, n)
		}
	}
	return b, r.Root.Key < k.Key || r.Root.Oldest < k.Oldest || r.Behind > 0
}

func (l *Link) askKeys(ctx context.Context, id api.ClusterID) (r wire.RootKeysReport, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	body, err := l.Ask(ctx, id, wire.StreamRequest{Kind: wire.StreamRootKeys})
	if err != nil {
		return r, err
	}
	defer body.Close()
	if err := json.NewDecoder(io.LimitReader(body, maxKeysReport)).Decode(&r); err != nil {
		return r, fmt.Errorf("cluster %s does not say which keys of the root it uses; upgrade it if it is of an earlier release: %w: %w", id, err, api.ErrUnavailable)
	}
	return r, nil
}
