package standby

import (
	"net/url"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/membership"
	"github.com/treeline-edge/treeline/internal/seal"
)

// openGossip makes this process a member among the replicas. It learns of the others from the lease, which has the
// address of the active one.
func (r *Replica) openGossip() error {
	if r.o.Gossip == "" {
		return nil
	}
	key, err := seal.Derive(r.o.Dir, r.o.Secret, "gossip among replicas of "+r.o.Role)
	if err != nil {
		return err
	}
	r.gossip, err = membership.Open(membership.Options{
		Name: nameOf(r.url), URL: r.url, Version: daemon.Version(), Listen: r.o.Gossip, Key: key, Log: r.o.Log,
	})
	if err != nil {
		return err
	}
	r.shares.Gossip(r.gossip.Address(), r.gossip.Changed())
	return nil
}

// leave ends the gossip.
func (r *Replica) leave() {
	if err := r.gossip.Close(); err != nil {
		r.o.Log.Warn("other replicas may see this one as failed", "err", err)
	}
}

// nameOf returns the name of the replica at a URL.
func nameOf(text string) string {
	if u, err := url.Parse(text); err == nil && u.Host != "" {
		return u.Host
	}
	return text
}

// Members returns all replicas that are known here, by name. It is called by the active replica, so that all others are standbys. Without
// gossip, nothing is known of the others but their URLs.
func (r *Replica) Members() []api.Replica {
	if r == nil {
		return []api.Replica{}
	}
	var all []api.Replica
	for _, m := range r.gossip.Members() {
		role := api.ReplicaStandby
		if m.State != api.ReplicaAlive {
			role = ""
		}
		all = append(all, api.Replica{Name: m.Name, URL: m.URL, Role: role, State: m.State, Since: m.Since, Version: m.Version})
	}
	for _, u := range append([]string{r.url}, r.o.Replicas...) {
		if !slices.ContainsFunc(all, func(a api.Replica) bool { return a.URL == u }) {
			all = append(all, api.Replica{Name: nameOf(u), URL: u, State: api.ReplicaUnknown})
		}
	}
	for i := range all {
		if a := &all[i]; a.URL == r.url {
			a.Role, a.State, a.Version = api.ReplicaActive, api.ReplicaAlive, daemon.Version()
		}
	}
	slices.SortFunc(all, func(a, b api.Replica) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// URLs returns the URLs of all replicas for clients: the configured ones, and those of members that have not left, the ones that are alive
// first.
func (r *Replica) URLs() []string {
	if r == nil {
		return nil
	}
	all := slices.Clone(r.o.Replicas)
	members := r.gossip.Members()
	for _, state := range []api.ReplicaState{api.ReplicaAlive, api.ReplicaFailed} {
		for _, m := range members {
			if m.State == state && !slices.Contains(all, m.URL) {
				all = append(all, m.URL)
			}
		}
	}
	if len(r.o.Replicas) == 0 && len(all) < 2 {
		return nil // clients have the address of the only one
	}
	return replicas.Clean(all)
}
