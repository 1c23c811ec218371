// Package signing keeps the keys that sign users' tokens in the store, encrypted, so that all replicas of a root have
// them, and rotates them.
//
//	k, err := signing.Open(signing.Options{Store: st, Loaded: loaded, Ring: ring, Sealer: sealer, …})
//	err = k.Rotate(ctx, false)
package signing

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
)

// Kind is the kind of the document with the keys.
const (
	Kind  = "token_keys"
	key   = "keys"
	label = "token keys"
)

// keep is how long a key verifies after it was replaced: the longest life of a token.
const keep = account.MaxPATLife

var keysBound = fairshare.Declare(fairshare.Bound{
	Resource: "keys that verify users' tokens at the same time", Total: 32, Per: "installation",
	Beyond: "409, or all earlier ones are dropped", Attack: "TestKeysAreBounded",
})

// Options of Open.
type Options struct {
	Store  store.Store
	Loaded []store.Doc
	Ring   *jwt.Ring // of the key file; Open replaces its keys by those in the store
	Sealer *seal.Sealer
	Share  bool                    // saves keys that were never rotated, too, so that standbys know that theirs are the same
	File   func(text []byte) error // writes the key file, for earlier releases
	Log    *slog.Logger
	Now    func() time.Time
}

// Keys are the signing keys. It is safe for concurrent use.
type Keys struct {
	opt   Options
	table *docs.Table[sealed]
	mu    sync.Mutex // held by Rotate
}

type sealed struct {
	Sealed []byte `json:"sealed"`
}

// Open reads the keys from the store, if they were rotated before. Keys that cannot be decrypted are replaced, which
// invalidates all tokens: those in the key file may be the ones that were stolen.
func Open(o Options) (*Keys, error) {
	k := &Keys{opt: o, table: docs.New[sealed](Kind, o.Store)}
	if err := k.table.Load(o.Loaded); err != nil {
		return nil, err
	}
	d, ok := k.table.Get(key)
	switch {
	case !ok && o.Share:
		return k, k.use(context.Background(), o.Ring)
	case !ok:
		return k, nil
	}
	err := d.to(o.Ring, o.Sealer, o.Now())
	if err == nil {
		return k, nil
	}
	o.Log.Warn("token keys in the store cannot be read, creating new ones; all sessions and tokens are invalid", "err", err)
	return k, k.use(context.Background(), jwt.NewRing(o.Now()))
}

// to replaces the keys of a ring.
func (s sealed) to(ring *jwt.Ring, by *seal.Sealer, now time.Time) error {
	v, err := by.Open(label, s.Sealed)
	if err != nil {
		return err
	}
	keys, err := jwt.ParseRing(v.Data[key])
	if err != nil {
		return err
	}
	ring.Use(keys)
	ring.Expire(now, keep)
	return nil
}

// Adopt replaces the keys of the ring of a copy by those of a document that another process has saved.
func Adopt(ring *jwt.Ring, by *seal.Sealer, d store.Doc, now time.Time) error {
	t := docs.New[sealed](Kind, nil)
	if err := t.Adopt(d); err != nil {
		return err
	}
	s, ok := t.Get(key)
	if !ok {
		return fmt.Errorf("read the signing keys: the document has none: %w", api.ErrNotFound)
	}
	return s.to(ring, by, now)
}

// Public returns the keys that verify tokens now.
func (k *Keys) Public() jwt.PublicKeys {
	k.opt.Ring.Expire(k.opt.Now(), keep)
	return k.opt.Ring.Public()
}

// Status describes the keys, the newest first.
func (k *Keys) Status() []api.SigningKey {
	k.opt.Ring.Expire(k.opt.Now(), keep)
	return k.opt.Ring.Status(keep)
}

// Rotate makes a new key. It signs when all clusters have had the time to fetch it, and the earlier keys verify until their
// tokens have ended. With revoke, it signs at once, and the earlier keys are dropped. Errors: ErrConflict (a new key does not
// sign yet, or there are too many).
func (k *Keys) Rotate(ctx context.Context, revoke bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, all := k.opt.Now(), k.Status()
	switch {
	case revoke:
	case all[0].Signs.After(now):
		return fmt.Errorf("rotate the signing key: key %s of %s signs from %s on only: %w", all[0].ID, all[0].Made.Format(time.RFC3339), all[0].Signs.Format(time.RFC3339), api.ErrConflict)
	case len(all) >= keysBound.Total:
		return fmt.Errorf("rotate the signing key: %d keys are still valid, the most there may be; the next one ends at %s: %w", len(all), all[len(all)-1].Ends.Format(time.RFC3339), api.ErrConflict)
	}
	text, err := k.opt.Ring.Marshal()
	if err != nil {
		return err
	}
	next, err := jwt.ParseRing(text)
	if err != nil {
		return err
	}
	if revoke {
		next.Rotate(now, 0, 0)
	} else {
		next.Rotate(now, jwt.Announce, keep)
	}
	return k.use(ctx, next)
}

// use saves the keys in the store and then uses them.
func (k *Keys) use(ctx context.Context, next *jwt.Ring) error {
	text, err := next.Marshal()
	if err != nil {
		return err
	}
	d, err := k.opt.Sealer.Seal(label, seal.Salted(map[string][]byte{key: text}))
	if err != nil {
		return err
	}
	err = k.table.Update(ctx, key, func(sealed, bool) (sealed, error) { return sealed{d}, nil })
	if err != nil {
		return fmt.Errorf("save the signing keys: %w", err)
	}
	k.opt.Ring.Use(next)
	if err := k.opt.File(text); err != nil {
		k.opt.Log.Warn("the file with the token keys is not up to date; the store has them", "err", err)
	}
	return nil
}
