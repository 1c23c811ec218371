package wiring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
)

// credentials returns the node's credentials, or joins with its token. It retries to join while the
// cluster cannot be reached. A node that has joined uses a new token to join again.
func credentials(ctx context.Context, cfg Config, dir *os.Root, info api.NodeInfo, log *slog.Logger) (clusterlink.Credentials, error) {
	creds, err := clusterlink.Load(dir)
	line := cfg.Token.Reveal()
	switch {
	case err == nil && line != "":
		return rejoin(ctx, cfg, dir, creds, info, log)
	case err == nil || !errors.Is(err, api.ErrNotFound):
		return creds, err
	case line == "":
		return creds, fmt.Errorf("this machine has not joined a cluster: run node-engine join --token-file FILE (the cluster's operator makes a token with treeline token create --node): %w", err)
	}
	creds, err = enrol.Retry(ctx, log, func() (clusterlink.Credentials, error) { return clusterlink.Join(ctx, dir, line, info, cfg.Cluster...) })
	if err == nil {
		log.Info("joined", "cluster", creds.Cluster, "node", creds.ID)
	}
	return creds, err
}

// rejoinTimeout is how long a start waits for the cluster to accept a new token.
const rejoinTimeout = 30 * time.Second

// rejoin joins again if the configured token is new. If the cluster rejects the token, the node
// keeps its credentials.
func rejoin(ctx context.Context, cfg Config, dir *os.Root, had clusterlink.Credentials, info api.NodeInfo, log *slog.Logger) (clusterlink.Credentials, error) {
	t, err := jointoken.Parse(cfg.Token.Reveal())
	if err != nil {
		return had, err
	}
	log = log.With("cluster", had.Cluster, "node", had.ID, "token", t.ID())
	if err := had.CheckToken(t); err != nil {
		return had, fmt.Errorf("give the new node a data directory of its own, or remove %s: %w", cfg.Data, err)
	}
	switch {
	case t.ID() == had.Token:
		return had, nil
	case had.Token == "": // it joined under a release that did not save the token's id
		log.Info("assuming that this node joined with the configured token; a different token will join it again")
		return had, had.SaveTokenID(dir, t.ID())
	}
	ctx, cancel := context.WithTimeout(ctx, rejoinTimeout)
	defer cancel()
	now, err := clusterlink.Rejoin(ctx, dir, had, cfg.Token.Reveal(), info, cfg.Cluster...)
	if err != nil {
		log.Error("joining again with the new token failed; the node keeps its credentials", "err", err,
			"fix", "remove the token from the configuration, or make another: treeline token create --node")
		return had, nil
	}
	log.Info("joined again with the new token", "url", now.URL)
	return now, nil
}
