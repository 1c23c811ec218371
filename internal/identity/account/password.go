package account

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/argon2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
)

// Cost is the cost of hashing a password. Each hash contains its cost, so that old hashes still
// verify after a change.
type Cost struct {
	MemoryKiB uint32
	Passes    uint32
	Lanes     uint8
}

// DefaultCost is OWASP's recommendation for argon2id: 19 MiB, two passes, about 30 ms.
var DefaultCost = Cost{MemoryKiB: 19 << 10, Passes: 2, Lanes: 1}

// maxCost bounds the cost in stored hashes.
var maxCost = Cost{MemoryKiB: 256 << 10, Passes: 16, Lanes: 8}

// hashesAtOnce bounds the memory of hashing: 38 MiB by default.
const hashesAtOnce = 2

var hashTurns = fairshare.Declare(fairshare.Bound{
	Resource: "sign-ins that wait for their password to be hashed", Total: 512, Share: []int{256, 64}, Per: "subnet, then address",
	Beyond: "2 work at once; addresses are served in turn, those without a failed sign-in lately first; the newest of the largest subnet gets 503",
	Attack: "TestGuessersDoNotLockAUserOut",
})

// origin is the origin of a sign-in; see WithOrigin.
type origin struct {
	path  []string
	clean bool
}

type originKey struct{}

// WithOrigin returns a context with the origin of a sign-in: a fairshare path of two levels. clean
// means that no sign-in from there has failed recently, which gives priority. All sign-ins
// without an origin count for one holder.
func WithOrigin(ctx context.Context, path []string, clean bool) context.Context {
	return context.WithValue(ctx, originKey{}, origin{path, clean})
}

func originOf(ctx context.Context) origin {
	if c, ok := ctx.Value(originKey{}).(origin); ok {
		return c
	}
	return origin{[]string{"local", "local"}, true}
}

const (
	saltSize    = 16
	hashSize    = 32
	minPassword = 10
	maxPassword = 256
)

type hasher struct {
	cost  Cost
	turns *fairshare.Turns
}

func newHasher(c Cost) *hasher {
	return &hasher{cost: c, turns: fairshare.NewTurns(hashTurns, hashesAtOnce, 0)}
}

// enter waits for the origin's turn; leave ends it.
func (h *hasher) enter(ctx context.Context) (leave func(), err error) {
	c := originOf(ctx)
	return h.turns.Enter(ctx, time.Now(), c.path, c.clean)
}

// hash returns the password's hash as $argon2id$v=19$m=…,t=…,p=…$salt$hash.
func (h *hasher) hash(ctx context.Context, password string) (string, error) {
	if n := len(password); n < minPassword || n > maxPassword {
		return "", fmt.Errorf("password has %d bytes, want %d to %d: %w", n, minPassword, maxPassword, api.ErrInvalid)
	}
	leave, err := h.enter(ctx)
	if err != nil {
		return "", fmt.Errorf("hash a password: %w", err)
	}
	defer leave()
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt) // never fails
	c := h.cost
	sum := argon2.IDKey([]byte(password), salt, c.Passes, c.MemoryKiB, c.Lanes, hashSize)
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, c.MemoryKiB, c.Passes, c.Lanes,
		b64.EncodeToString(salt), b64.EncodeToString(sum)), nil
}

var b64 = base64.RawStdEncoding

// matches reports whether the password has the hash. An empty or malformed hash matches no
// password and takes as long to check, so that timing does not reveal which users exist.
func (h *hasher) matches(ctx context.Context, hash, password string) (bool, error) {
	if len(password) > maxPassword {
		return false, nil
	}
	leave, err := h.enter(ctx)
	if err != nil {
		return false, fmt.Errorf("check a password: %w", err)
	}
	defer leave()
	c, salt, want, ok := parseHash(hash)
	if !ok {
		c, salt, want = h.cost, make([]byte, saltSize), make([]byte, hashSize)
	}
	got := argon2.IDKey([]byte(password), salt, c.Passes, c.MemoryKiB, c.Lanes, uint32(len(want)))
	return subtle.ConstantTimeCompare(got, want) == 1 && ok, nil
}

func parseHash(s string) (c Cost, salt, sum []byte, ok bool) {
	p := strings.Split(s, "$")
	if len(p) != 6 || p[1] != "argon2id" || p[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return c, nil, nil, false
	}
	if _, err := fmt.Sscanf(p[3], "m=%d,t=%d,p=%d", &c.MemoryKiB, &c.Passes, &c.Lanes); err != nil {
		return c, nil, nil, false
	}
	salt, err := b64.DecodeString(p[4])
	sum, err2 := b64.DecodeString(p[5])
	ok = err == nil && err2 == nil && len(salt) >= 8 && len(sum) == hashSize &&
		c.MemoryKiB > 0 && c.MemoryKiB <= maxCost.MemoryKiB &&
		c.Passes > 0 && c.Passes <= maxCost.Passes && c.Lanes > 0 && c.Lanes <= maxCost.Lanes
	return c, salt, sum, ok
}
