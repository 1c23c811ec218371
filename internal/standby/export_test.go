package standby

import (
	"log/slog"
	"os"

	"github.com/treeline-edge/treeline/internal/store/shared"
)

// Member returns a replica that is a member, and no more. Its key is in the file secret of dir.
func Member(dir *os.Root, url string, configured ...string) (*Replica, error) {
	r := &Replica{
		o:   Options{Config: Config{Gossip: "127.0.0.1:0", Replicas: configured}, Role: "root", Dir: dir, Secret: "secret", Log: slog.New(slog.DiscardHandler)},
		url: url, shares: shared.New(nil, nil, shared.Options{}),
	}
	return r, r.openGossip()
}

// Contact joins the replica.
func (r *Replica) Contact(to *Replica) { r.gossip.Contact(to.gossip.Address()) }

// Leave ends the gossip.
func (r *Replica) Leave() { r.leave() }

// HealthOr is the handler of a standby that passes on to next what it does not answer itself.
var HealthOr = healthOr

// What a standby does for its copy.
var (
	ReadFirst = readFirst
	Executed  = executed
)
