// Package rootca replaces the key of the root's certificate authority while clusters, nodes and clients stay connected. Each step is
// stored before it is carried out, with the new key, encrypted, so that another replica and a process after a crash continue it.
//
//	r, err := rootca.Open(rootca.Options{Store: st, Loaded: docs, Sealer: s, Pair: fromFile, Save: toFile, …})
//	r.Authority()                        // signs
//	err = r.Begin(ctx, "root")           // a new key signs, the earlier one stays valid
//	err = r.Retire(ctx, "root", nil)     // the earlier one is refused
package rootca

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/roots"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Kind is the kind of the document of the last rotation.
const (
	Kind  = "root_ca"
	key   = "rotation"
	label = "root ca"
)

const maxNamed = 5 // clusters in an error

// record is the last rotation.
type record struct {
	State  string    `json:"state"`  // api.AuthoritySigning, api.AuthorityRetired
	Sealed []byte    `json:"sealed"` // the pair
	Before string    `json:"before"` // PEM: the certificate of the key before
	Since  time.Time `json:"since"`
	By     string    `json:"by,omitempty"`
}

// Adopt returns the pair in the documents, if it is newer than the one in the data directory: a process that ended before it had
// saved its file, or a standby, has an earlier one. before is the certificate of the key before; nil: there was none. It returns
// ErrConflict if the pair in the documents does not follow the one in the data directory.
func Adopt(loaded []store.Doc, have ca.Pair, sealer *seal.Sealer, now time.Time) (_ ca.Pair, before *x509.Certificate, changed bool, err error) {
	t := docs.New[record](Kind, nil)
	if err := t.Load(loaded); err != nil {
		return have, nil, false, err
	}
	d, ok := t.Get(key)
	if !ok {
		return have, nil, false, nil
	}
	was, err := ca.DecodeChain([]byte(d.Before))
	if err != nil {
		return have, nil, false, err
	}
	pair, err := open(sealer, d)
	if err != nil {
		return have, nil, false, fmt.Errorf("read the key of the root's certificate authority in the store: %w", err)
	}
	in, err := pair.RootGeneration()
	if err != nil {
		return have, nil, false, err
	}
	had, err := have.RootGeneration()
	if err != nil {
		return have, nil, false, err
	}
	// An older document, of a backup, must not bring back a retired key.
	if !had.Before(in) {
		return have, was[0], false, nil
	}
	// The store is another trust domain than the data directory: without secrets.key, nobody can seal a pair that opens here, and
	// the mark of the store says that it is of this installation's earlier key.
	if !roots.Contains(have.Roots(), was[0]) && !pair.Root().Equal(have.Root()) {
		return have, nil, false, fmt.Errorf("the key of the root's certificate authority in the store replaces another one than that in the data directory: "+
			"copy root-ca.pem from the active replica, or restore the keys and the store of one backup: %w", api.ErrConflict)
	}
	return pair, was[0], true, nil
}

// Options of Open.
type Options struct {
	Store  store.Store
	Loaded []store.Doc
	Sealer *seal.Sealer
	Pair   ca.Pair       // in use; see Adopt
	Life   time.Duration // of certificates that the authority signs; 0: the default
	// Save makes a pair durable in the data directory, and marks the store as that of its key. It may be repeated.
	Save func(context.Context, ca.Pair) error
	Now  func() time.Time
	Log  *slog.Logger
}

// Rotation is the root's authority and the rotation of its key. It is safe for concurrent use.
type Rotation struct {
	o       Options
	table   *docs.Table[record]
	current atomic.Pointer[ca.Authority]

	turn   sync.Mutex // held while a step is carried out, guards unused
	unused bool       // the pair is not used everywhere yet

	// Set before the first request: Renew renews the root's own certificate and sends clusters which keys there are; Behind returns
	// the clusters that are behind these keys; Retired is called after the earlier key was retired, to end connections.
	Renew   func(context.Context) error
	Behind  func(context.Context, wire.RootKeys) ([]api.ClusterBehind, error)
	Retired func()
}

// Open returns the authority with the pair of the options, and the rotation that the documents describe.
func Open(o Options) (*Rotation, error) {
	r := &Rotation{o: o, table: docs.New[record](Kind, o.Store)}
	if err := r.table.Load(o.Loaded); err != nil {
		return nil, err
	}
	return r, r.use(o.Pair)
}

func (r *Rotation) use(p ca.Pair) error {
	a, err := ca.New(p)
	if err != nil {
		return err
	}
	r.current.Store(a.WithLife(r.o.Life))
	return nil
}

// Authority returns the authority that signs.
func (r *Rotation) Authority() *ca.Authority { return r.current.Load() }

// Hash returns the hash of the newest root certificate, which join tokens pin.
func (r *Rotation) Hash() [sha256.Size]byte { return r.Authority().Hash() }

// Begin replaces the key: the new one signs from then on, and certificates of the earlier one stay valid. It returns ErrConflict
// while an earlier rotation has not ended.
func (r *Rotation) Begin(ctx context.Context, by string) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	d, resumed, err := r.resume(ctx)
	if err != nil || resumed {
		return err
	}
	if d.State == api.AuthoritySigning {
		return fmt.Errorf("rotate the key of the root's certificate authority: the rotation of %s has not ended; retire the earlier key first (treeline rotate root-ca --retire): %w",
			d.Since.UTC().Format(time.RFC3339), api.ErrConflict)
	}
	had := r.Authority()
	next, err := had.Successor(r.o.Now())
	if err != nil {
		return err
	}
	d = record{State: api.AuthoritySigning, Since: r.o.Now(), By: by, Before: string(ca.EncodeChain(had.Pair().Chain[:1]))}
	if err := r.save(ctx, d, next); err != nil {
		return err
	}
	r.o.Log.Warn("new key of the root's certificate authority signs", "by", by, "pin", fmt.Sprintf("%x", sha256.Sum256(next.Root().Raw)))
	return r.take(ctx, next)
}

// resume takes a pair of the store that could not be taken when it was stored, and returns the rotation.
func (r *Rotation) resume(ctx context.Context) (d record, resumed bool, err error) {
	d, ok := r.table.Get(key)
	if !ok {
		return d, false, nil
	}
	p, err := open(r.o.Sealer, d)
	if err != nil {
		return d, false, fmt.Errorf("read the key of the root's certificate authority in the store: %w", err)
	}
	in, err := p.RootGeneration()
	if err != nil {
		return d, false, err
	}
	have, err := r.Authority().Pair().RootGeneration()
	if err != nil || !have.Before(in) && !r.unused {
		return d, false, err
	}
	return d, true, r.take(ctx, p)
}

// take has a pair used that the store has.
func (r *Rotation) take(ctx context.Context, p ca.Pair) (err error) {
	r.unused = true
	defer func() { r.unused = err != nil }()
	if err := r.o.Save(ctx, p); err != nil {
		return err
	}
	if err := r.use(p); err != nil {
		return err
	}
	return r.Renew(ctx)
}

// Retire has certificates of the earlier key refused. It returns ErrConflict if clusters or nodes of clusters are behind that are not
// in leave.
func (r *Rotation) Retire(ctx context.Context, by string, leave []api.ClusterID) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	d, _, err := r.resume(ctx)
	if err != nil {
		return err
	}
	switch d.State {
	case api.AuthoritySigning:
	case api.AuthorityRetired:
		return nil
	default:
		return fmt.Errorf("retire the earlier key of the root's certificate authority: there is none; begin with treeline rotate root-ca: %w", api.ErrConflict)
	}
	pair := r.Authority().Pair()
	g, err := pair.RootGeneration()
	if err != nil {
		return err
	}
	behind, err := r.Behind(ctx, wire.RootKeys{Key: g.Root})
	if err != nil {
		return err
	}
	behind = slices.DeleteFunc(behind, func(b api.ClusterBehind) bool { return slices.Contains(leave, b.Cluster) })
	if len(behind) > 0 {
		var names []string
		for _, b := range behind[:min(len(behind), maxNamed)] {
			names = append(names, string(b.Cluster))
		}
		return fmt.Errorf("retire the earlier key of the root's certificate authority: %d clusters or some of their nodes have not renewed their certificates, among them %s; "+
			"wait for them, delete those that will not come back, or give them with --leave-behind: %w", len(behind), strings.Join(names, ", "), api.ErrConflict)
	}
	d.State = api.AuthorityRetired
	pair = pair.Retired()
	if err := r.save(ctx, d, pair); err != nil {
		return err
	}
	r.o.Log.Warn("earlier key of the root's certificate authority retired", "by", by, "generation", g.Root, "left_behind", leave)
	err = r.take(ctx, pair)
	r.Retired()
	return err
}

// Status describes the authority.
func (r *Rotation) Status(ctx context.Context) (api.RootAuthority, error) {
	d, _ := r.table.Get(key)
	a := r.Authority()
	g, err := a.Pair().RootGeneration()
	if err != nil {
		return api.RootAuthority{}, err
	}
	out := api.RootAuthority{Generation: g.Root, State: d.State, Since: d.Since, By: d.By, Ends: a.Root().NotAfter, Pin: fmt.Sprintf("%x", a.Hash())}
	if d.State != "" {
		out.Behind, err = r.Behind(ctx, wire.RootKeys{Key: g.Root, Oldest: g.RootOldest})
	}
	return out, err
}

func (r *Rotation) save(ctx context.Context, d record, p ca.Pair) error {
	text, err := p.PEM()
	if err != nil {
		return err
	}
	if d.Sealed, err = r.o.Sealer.Seal(label, seal.Salted(map[string][]byte{key: text})); err != nil {
		return err
	}
	if err := r.table.Update(ctx, key, func(record, bool) (record, error) { return d, nil }); err != nil {
		return fmt.Errorf("save the rotation of the root's certificate authority: %w", err)
	}
	return nil
}

func open(s *seal.Sealer, d record) (ca.Pair, error) {
	v, err := s.Open(label, d.Sealed)
	if err != nil {
		return ca.Pair{}, err
	}
	p, err := ca.ParsePair(v.Data[key])
	if err != nil {
		return p, err
	}
	if id, err := identity.Of(p.Chain[0]); err != nil || id != identity.OfRoot() {
		return p, fmt.Errorf("the key is of %s, want the root's: %w", id, api.ErrInvalid)
	}
	return p, nil
}
