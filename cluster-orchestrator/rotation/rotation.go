// Package rotation replaces the key of a cluster's certificate authority while the cluster works.
//
// Nodes trust the root's certificate, and with it each key that the root has certified for the cluster. Therefore a new
// key signs as soon as the root has certified it and, with an external broker, the broker trusts it. Then all nodes are
// asked to renew their certificates, a few at a time. When they have, an administrator retires the earlier keys: the root
// revokes their certificates, and says so in the next certificate of the authority, so that every machine that sees it
// refuses the earlier keys by itself (package trust).
//
// The store has each step before it is carried out, with the new key (encrypted), so that a crash or another replica
// continues it.
//
//	creds, before, err := rotation.Adopt(dir, docs, creds, sealer) // at the start
//	r, err := rotation.New(rotation.Options{…})
//	err = r.Begin(ctx, "operator")
//	err = r.Retire(ctx, "operator", nil)
package rotation

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/roots"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rootlink"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
)

// Kind is the kind of the document of the last rotation.
const (
	Kind  = "cluster_ca"
	key   = "rotation"
	label = "cluster ca"
)

const (
	tick       = time.Second
	together   = 8 // renewals of nodes at the same time
	minRetry   = 10 * time.Second
	maxRetry   = 5 * time.Minute
	maxNamed   = 5 // nodes in an error
	pemKey     = "PRIVATE KEY"
	readyEvery = 5 * time.Second // between checks whether an external broker trusts the new key
)

// record is the last rotation.
type record struct {
	State   string    `json:"state"`
	Sealed  []byte    `json:"sealed"`            // the new key and, after requested, its chain
	Before  string    `json:"before,omitempty"`  // PEM: the authority's certificate of the key before; since signing
	Anchors string    `json:"anchors,omitempty"` // PEM: by which an external broker trusts the other key of the two; until retired
	Since   time.Time `json:"since"`
	By      string    `json:"by,omitempty"`
}

// Options of New.
type Options struct {
	Store  store.Store
	Loaded []store.Doc
	Sealer *seal.Sealer
	// Credentials returns those in use. Use saves and uses others; it may be repeated.
	Credentials func() rootlink.Credentials
	Use         func(context.Context, rootlink.Credentials) error
	// Rotate and Retire are those of the credentials, with the root as server.
	Rotate func(context.Context, rootlink.Credentials, crypto.Signer) (rootlink.Credentials, error)
	Retire func(context.Context, rootlink.Credentials) (rootlink.Credentials, error)
	// Behind returns the nodes without a certificate of a generation; Connected those that can be asked to renew.
	Behind    func(identity.Generation) []api.AuthorityBehind
	Connected func(context.Context) ([]api.NodeID, error)
	Renew     func(context.Context, api.NodeID) error
	// Trusted returns an error until an external broker accepts certificates of the pair; nil: the broker is embedded.
	Trusted func(context.Context, ca.Pair) error
	// Announce writes Anchors for an external broker.
	Announce func(context.Context) error
	// Retired is called when the earlier keys are retired, to end connections.
	Retired func(context.Context)
	Now     func() time.Time
	Log     *slog.Logger
}

// Rotation is the rotation of one cluster's authority. It is safe for concurrent use.
type Rotation struct {
	o     Options
	table *docs.Table[record]
	kick  chan struct{}

	turn sync.Mutex // held while a step is carried out

	mu    sync.Mutex // guards the fields below
	waits error      // why the new key does not sign yet
	nodes map[api.NodeID]attempt
}

// attempt is the last renewal of a node, which failed.
type attempt struct {
	err   error
	next  time.Time
	pause time.Duration
}

// New returns the rotation that the documents describe. Run continues it.
func New(o Options) (*Rotation, error) {
	r := &Rotation{o: o, table: docs.New[record](Kind, o.Store), kick: make(chan struct{}, 1), nodes: map[api.NodeID]attempt{}}
	return r, r.table.Load(o.Loaded)
}

// Adopt returns the credentials with the pair in the documents, if it is newer than theirs: a process that ended before it
// had saved its files, or a standby, has an earlier one. before is the certificate of the key before; nil: there was none.
func Adopt(now time.Time, loaded []store.Doc, creds rootlink.Credentials, sealer *seal.Sealer) (_ rootlink.Credentials, before *x509.Certificate, changed bool, err error) {
	t := docs.New[record](Kind, nil)
	if err := t.Load(loaded); err != nil {
		return creds, nil, false, err
	}
	d, ok := t.Get(key)
	if !ok || d.State != api.AuthoritySigning && d.State != api.AuthorityRetired {
		return creds, nil, false, nil
	}
	was, err := ca.DecodeChain([]byte(d.Before))
	if err != nil {
		return creds, nil, false, err
	}
	pair, err := open(sealer, d)
	if err != nil {
		return creds, nil, false, fmt.Errorf("read the key of the cluster's certificate authority in the store: %w", err)
	}
	in, err := identity.GenerationOf(pair.Chain[0])
	if err != nil {
		return creds, nil, false, err
	}
	have, err := identity.GenerationOf(creds.Pair.Chain[0])
	if err != nil {
		return creds, nil, false, err
	}
	// An older document, of a backup, must not bring back a retired key.
	if !have.Own().Before(in.Own()) {
		return creds, was[0], false, nil
	}
	if pair.Chain, err = roots.Renewed(now, creds.Pair.Roots(), pair.Chain); err != nil {
		return creds, nil, false, fmt.Errorf("the key of the cluster's certificate authority in the store is of another installation: %w: %w", err, api.ErrConflict)
	}
	creds.Pair = pair
	return creds, was[0], true, nil
}

// Anchors returns further certificates that an external broker must trust, as PEM.
func (r *Rotation) Anchors() []byte {
	d, _ := r.table.Get(key)
	return []byte(d.Anchors)
}

// Begin begins a rotation, or continues one that does not sign yet. It returns ErrConflict while certificates of an
// earlier key are valid, and ErrUnavailable without the root.
func (r *Rotation) Begin(ctx context.Context, by string) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	d, ok := r.table.Get(key)
	if d.State == api.AuthoritySigning {
		return fmt.Errorf("rotate the key of the certificate authority: the rotation of %s has not ended; retire the earlier key first (treeline rotate cluster-ca --retire): %w",
			d.Since.UTC().Format(time.RFC3339), api.ErrConflict)
	}
	if !ok || d.State == api.AuthorityRetired {
		next, err := ca.NewKey()
		if err != nil {
			return err
		}
		der, err := x509.MarshalPKCS8PrivateKey(next)
		if err != nil {
			return fmt.Errorf("encode a private key: %w", err)
		}
		fresh := record{State: api.AuthorityRequested, Since: r.o.Now(), By: by, Before: d.Before}
		if err := r.save(ctx, fresh, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})); err != nil {
			return err
		}
	}
	err := r.advance(ctx)
	r.wake()
	return err
}

// advance carries out the steps until the new key signs, or the external broker has to be waited for. The caller holds turn.
func (r *Rotation) advance(ctx context.Context) error {
	d, ok := r.table.Get(key)
	if !ok {
		return nil
	}
	creds := r.o.Credentials()
	if d.State == api.AuthorityRequested {
		text, err := r.unseal(d)
		if err != nil {
			return err
		}
		next, err := keyOf(text)
		if err != nil {
			return err
		}
		signed, err := r.o.Rotate(ctx, creds, next)
		if err != nil {
			return err
		}
		if d.Anchors, err = anchor(signed.Pair, r.o.Now()); err != nil {
			return err
		}
		d.State = api.AuthorityAnnounced
		if err := r.savePair(ctx, d, signed.Pair); err != nil {
			return err
		}
		r.o.Log.Warn("new key of the cluster's certificate authority certified by the root", "by", d.By)
	}
	d, _ = r.table.Get(key)
	pair, err := open(r.o.Sealer, d)
	if err != nil {
		return err
	}
	if d.State == api.AuthorityAnnounced {
		if r.o.Trusted != nil {
			err := r.o.Announce(ctx)
			if err == nil {
				err = r.o.Trusted(ctx, pair)
			}
			r.mu.Lock()
			r.waits = err
			r.mu.Unlock()
			if err != nil {
				return nil //nolint:nilerr // Run repeats it, and Status shows it
			}
		}
		d.State, d.Before = api.AuthoritySigning, string(ca.EncodeChain(creds.Pair.Chain[:1]))
		if d.Anchors, err = anchor(creds.Pair, r.o.Now()); err != nil {
			return err
		}
		if err := r.savePair(ctx, d, pair); err != nil {
			return err
		}
		r.o.Log.Warn("new key of the cluster's certificate authority signs", "by", d.By)
	}
	return r.use(ctx, pair)
}

// use has the pair used, unless it or a newer one is already.
func (r *Rotation) use(ctx context.Context, pair ca.Pair) error {
	creds := r.o.Credentials()
	have, err := identity.GenerationOf(creds.Pair.Chain[0])
	if err != nil {
		return err
	}
	next, err := identity.GenerationOf(pair.Chain[0])
	if err != nil || !have.Own().Before(next.Own()) {
		return err
	}
	creds.Pair = pair
	if err := r.o.Use(ctx, creds); err != nil {
		return fmt.Errorf("use the new key of the cluster's certificate authority: %w", err)
	}
	return nil
}

// Retire has certificates of earlier keys refused everywhere. It returns ErrConflict if nodes are behind that are not
// in leave, ErrInvalid for unknown ones in it, and ErrUnavailable without the root.
func (r *Rotation) Retire(ctx context.Context, by string, leave []api.NodeID) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	d, _ := r.table.Get(key)
	switch d.State {
	case api.AuthoritySigning:
	case api.AuthorityRetired:
		return nil
	case "":
		return fmt.Errorf("retire the earlier keys of the certificate authority: there are none; begin with treeline rotate cluster-ca: %w", api.ErrConflict)
	default:
		return fmt.Errorf("retire the earlier keys of the certificate authority: the new key does not sign yet: %w", api.ErrConflict)
	}
	creds := r.o.Credentials()
	g, err := identity.GenerationOf(creds.Pair.Chain[0])
	if err != nil {
		return err
	}
	behind := r.o.Behind(identity.Generation{Key: g.Key}) // and any key of the root
	behind = slices.DeleteFunc(behind, func(b api.AuthorityBehind) bool { return slices.Contains(leave, b.Node) })
	if len(behind) > 0 {
		var names []string
		for _, b := range behind[:min(len(behind), maxNamed)] {
			names = append(names, string(b.Node))
		}
		return fmt.Errorf("retire the earlier keys of the certificate authority: %d nodes have not renewed their certificates, among them %s; "+
			"wait for them, delete those that will not come back, or give them with --leave-behind: %w", len(behind), strings.Join(names, ", "), api.ErrConflict)
	}
	next, err := r.o.Retire(ctx, creds)
	if err != nil {
		return err
	}
	d.State, d.Anchors = api.AuthorityRetired, ""
	if err := r.savePair(ctx, d, next.Pair); err != nil {
		return err
	}
	if err := r.o.Use(ctx, next); err != nil {
		return fmt.Errorf("use the certificate that retires the earlier keys: %w", err)
	}
	r.o.Log.Warn("earlier keys of the cluster's certificate authority retired", "by", by, "generation", g.Key, "left_behind", leave)
	r.mu.Lock()
	clear(r.nodes) // nodes renew once more, so that their own certificate says what is retired
	r.mu.Unlock()
	r.wake()
	r.o.Retired(ctx)
	return nil
}

// Status describes the authority.
func (r *Rotation) Status() (api.Authority, error) {
	d, _ := r.table.Get(key)
	cert := r.o.Credentials().Pair.Chain[0]
	g, err := identity.GenerationOf(cert)
	if err != nil {
		return api.Authority{}, err
	}
	out := api.Authority{Generation: g.Key, State: d.State, Since: d.Since, Ends: cert.NotAfter, Behind: r.o.Behind(g)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waits != nil && d.State == api.AuthorityAnnounced {
		out.Waits = r.waits.Error()
	}
	for i, b := range out.Behind {
		if a, ok := r.nodes[b.Node]; ok && a.err != nil {
			out.Behind[i].Error = a.err.Error()
		}
	}
	return out, nil
}

// Wake makes Run ask the connected nodes now whose certificates are of an earlier generation than the authority's. Call it after
// the certificate of the authority was renewed.
func (r *Rotation) Wake() {
	r.mu.Lock()
	clear(r.nodes)
	r.mu.Unlock()
	r.wake()
}

func (r *Rotation) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Run continues a rotation, and asks nodes to renew their certificates, until ctx ends.
func (r *Rotation) Run(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.kick:
		case <-next.C:
		}
		pause, err := r.step(ctx)
		if err != nil && ctx.Err() == nil {
			r.o.Log.Warn("rotation of the cluster's certificate authority delayed", "err", err)
		}
		next.Reset(pause)
	}
}

// idle is the pause when there is nothing to do; kick ends it.
const idle = time.Hour

func (r *Rotation) step(ctx context.Context) (pause time.Duration, err error) {
	r.turn.Lock()
	err = r.advance(ctx)
	r.turn.Unlock()
	d, _ := r.table.Get(key)
	switch {
	case err != nil:
		return minRetry, err
	case d.State == api.AuthorityRequested, d.State == api.AuthorityAnnounced:
		return readyEvery, nil
	}
	g, err := identity.GenerationOf(r.o.Credentials().Pair.Chain[0])
	if err != nil {
		return minRetry, err
	}
	behind := r.o.Behind(g)
	if len(behind) == 0 && d.State != api.AuthoritySigning {
		return idle, nil
	}
	if err := r.ask(ctx, behind); err != nil {
		return minRetry, err
	}
	return tick, nil
}

// ask asks the connected nodes among those behind to renew, and waits for them.
func (r *Rotation) ask(ctx context.Context, behind []api.AuthorityBehind) error {
	if len(behind) == 0 {
		return nil
	}
	connected, err := r.o.Connected(ctx)
	if err != nil {
		return err
	}
	now := r.o.Now()
	r.mu.Lock()
	var due []api.NodeID
	for _, b := range behind {
		if slices.Contains(connected, b.Node) && !r.nodes[b.Node].next.After(now) {
			due = append(due, b.Node)
		}
	}
	for n := range r.nodes {
		if !slices.ContainsFunc(behind, func(b api.AuthorityBehind) bool { return b.Node == n }) {
			delete(r.nodes, n)
		}
	}
	r.mu.Unlock()
	var all errgroup.Group
	all.SetLimit(together)
	for _, n := range due {
		all.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			err := r.o.Renew(ctx, n)
			r.mu.Lock()
			defer r.mu.Unlock()
			a := r.nodes[n]
			a.err, a.pause = err, min(max(2*a.pause, minRetry), maxRetry)
			a.next = r.o.Now().Add(a.pause)
			r.nodes[n] = a
			return nil
		})
	}
	return all.Wait()
}

func (r *Rotation) savePair(ctx context.Context, d record, p ca.Pair) error {
	text, err := p.PEM()
	if err != nil {
		return err
	}
	return r.save(ctx, d, text)
}

func (r *Rotation) save(ctx context.Context, d record, text []byte) error {
	var err error
	if d.Sealed, err = r.o.Sealer.Seal(label, seal.Salted(map[string][]byte{key: text})); err != nil {
		return err
	}
	if err := r.table.Update(ctx, key, func(record, bool) (record, error) { return d, nil }); err != nil {
		return fmt.Errorf("save the rotation of the certificate authority: %w", err)
	}
	return nil
}

func (r *Rotation) unseal(d record) ([]byte, error) { return unseal(r.o.Sealer, d) }

func unseal(s *seal.Sealer, d record) ([]byte, error) {
	v, err := s.Open(label, d.Sealed)
	if err != nil {
		return nil, err
	}
	return v.Data[key], nil
}

func open(s *seal.Sealer, d record) (ca.Pair, error) {
	text, err := unseal(s, d)
	if err != nil {
		return ca.Pair{}, err
	}
	return ca.ParsePair(text)
}

func keyOf(text []byte) (crypto.Signer, error) {
	b, _ := pem.Decode(text)
	if b == nil {
		return nil, fmt.Errorf("the new key of the certificate authority is malformed: %w", api.ErrInvalid)
	}
	k, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	s, ok := k.(crypto.Signer)
	if err != nil || !ok {
		return nil, fmt.Errorf("the new key of the certificate authority is malformed: %w", errors.Join(err, api.ErrInvalid))
	}
	return s, nil
}

// anchor returns the certificate by which an external broker trusts the pair's authority.
func anchor(p ca.Pair, now time.Time) (string, error) {
	a, err := ca.New(p)
	if err != nil {
		return "", err
	}
	c, err := a.Anchor(now)
	if err != nil {
		return "", err
	}
	return string(ca.EncodeChain([]*x509.Certificate{c})), nil
}
