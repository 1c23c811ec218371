package clusterlink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/wire"
)

const purgeTime = 30 * time.Second // for one request

// Purging asks the cluster whether this node is to be purged. failed is the error of the
// last attempt, or empty.
func Purging(ctx context.Context, client *http.Client, url, failed string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, purgeTime)
	defer cancel()
	var out wire.NodePurge
	if err := call.JSON(ctx, client, url+"/v1/node/purge", wire.NodePurging{Failed: failed}, &out); err != nil {
		return false, fmt.Errorf("ask the cluster whether to purge this node: %w", err)
	}
	return out.Purge, nil
}

// Left reports to the cluster that this node has been purged. It succeeds for a node that
// the cluster has removed already.
func Left(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, purgeTime)
	defer cancel()
	err := call.JSON(ctx, client, url+"/v1/node/left", struct{}{}, nil)
	if p, ok := errors.AsType[*api.Problem](err); ok && p.Status == http.StatusForbidden {
		return nil // the cluster's answer, not a peer that is not the cluster
	}
	if err != nil {
		return fmt.Errorf("tell the cluster that this node has left: %w", err)
	}
	return nil
}
