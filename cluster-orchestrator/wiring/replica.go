package wiring

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/cluster-orchestrator/rootlink"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/reach"
	"github.com/treeline-edge/treeline/internal/standby"
)

// roleOf returns the name of a cluster's documents in a store that others share.
func roleOf(id api.ClusterID) string { return "cluster-" + string(id) }

// openReplica opens the store of a cluster with replicas before the cluster joins: a replica without
// copies of the keys must not join as a cluster of its own.
func openReplica(ctx context.Context, cfg Config, dir *os.Root, log *slog.Logger) (*standby.Replica, error) {
	creds, err := rootlink.Load(dir)
	if err != nil && !errors.Is(err, api.ErrNotFound) {
		return nil, err
	}
	id := cmp.Or(creds.Info.ID, api.ClusterID(cfg.Name))
	if id == "" {
		return nil, daemon.Invalid("name", "is required at the first start")
	}
	keys := append(rootlink.Files(), valuesKeyFile)
	if cfg.OperatorToken == "" {
		keys = append(keys, OperatorFile)
	}
	return standby.Open(ctx, standby.Options{
		Config: cfg.replicas(), Self: identity.OfCluster(id), Role: roleOf(id), Listen: cfg.Listen, Names: cfg.Names,
		Dir: dir, AddressFile: AddressFile, Keys: keys, Secret: valuesKeyFile, Log: log,
	})
}

// awaitActive waits until this replica is active. Meanwhile it renews its certificates and those for
// the broker, and follows the keys of users' tokens, so that they are valid when it takes over.
func (o *orchestrator) awaitActive(ctx context.Context, dir *os.Root, creds rootlink.Credentials) (net.Listener, error) {
	if err := o.openIdentity(dir, creds, o.replica.Addr()); err != nil {
		return nil, err
	}
	return o.replica.Await(ctx, standby.Serving{Verifier: o.id.verifier, Keeper: o.id.keeper, Parts: []daemon.Part{
		{Name: "authority", Run: o.id.upper.Run},
		{Name: "broker", Run: o.outer.Run},
		{Name: "keys", Run: o.followKeys},
		{Name: "root keys", Run: o.followRoot},
	}})
}

// openIdentity opens the cluster's keys and creates the client of the root.
func (o *orchestrator) openIdentity(dir *os.Root, creds rootlink.Credentials, at net.Addr) (err error) {
	_, names := reach.Of(at, o.cfg.URL, o.cfg.Names)
	if o.id, err = openIdentity(o.cfg, dir, creds, names, o.log); err != nil {
		return err
	}
	o.roots = replicas.New(append([]string{creds.URL}, o.cfg.Root...)...)
	o.roots.Learn(creds.Replicas)
	o.client = rootlink.Client(o.id.verifier, o.id.keeper.GetClientCertificate, o.roots)
	o.client.Transport = o.replica.Transport(o.client.Transport)
	if err := o.id.openUpper(o.client); err != nil || !o.cfg.Broker.external() {
		return err
	}
	o.outer, err = o.id.brokerKeeper(o.cfg.Broker)
	return err
}

func (o *orchestrator) followKeys(ctx context.Context) error { return o.id.followKeys(ctx, o.client) }

// served returns what the active replica serves.
func (o *orchestrator) served() http.Handler {
	if o.replica == nil {
		return o.http
	}
	return standby.Accept(o.id.verifier, identity.OfCluster(o.id.info().ID), o.http)
}
