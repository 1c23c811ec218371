package jointoken

import (
	"errors"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
)

var attempts = fairshare.Declare(fairshare.Bound{
	Resource: "addresses remembered for refused joins", Total: 16384, Per: "subnet",
	Beyond: "60 refused joins at once and 1 a second per address, then 429; beyond the total the least recently used address of the largest subnet starts afresh",
	Attack: "TestRefusedJoinsSlowTheirAddressOnly",
})

// Attempts slows down addresses that show join tokens which are refused. Joins that
// succeed cost nothing: a thousand machines may join from behind one address.
type Attempts struct {
	now   func() time.Time
	rates *fairshare.Rates
}

// NewAttempts remembers nobody yet. A nil now is time.Now.
func NewAttempts(now func() time.Time) *Attempts {
	if now == nil {
		now = time.Now
	}
	return &Attempts{now: now, rates: fairshare.NewRates(attempts, 1, 60)}
}

// Try runs a join from the remote address, unless too many from there were refused.
func (a *Attempts) Try(remote string, join func() error) error {
	path := fairshare.Remote(remote)
	if now := a.now(); a.rates.Left(now, path[0], path[1]) < 1 {
		if err := a.rates.Allow(now, path[0], path[1]); err != nil {
			return err
		}
	}
	err := join()
	if errors.Is(err, api.ErrUnauthenticated) || errors.Is(err, api.ErrForbidden) || errors.Is(err, api.ErrInvalid) {
		_ = a.rates.Allow(a.now(), path[0], path[1]) // what is spent already stays spent
	}
	return err
}
