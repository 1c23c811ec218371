package client

import (
	"context"
	"net/http"

	"github.com/treeline-edge/treeline/api"
)

// RollOut returns the newest roll-out of a service.
func (c *Client) RollOut(ctx context.Context, id api.ServiceID) (api.RollOut, error) {
	return Get[api.RollOut](ctx, c, pathOf(Services, id)+"/rollout")
}

// RollOutHistory returns the versions of a service, the oldest first.
func (c *Client) RollOutHistory(ctx context.Context, id api.ServiceID) (api.RollOutHistory, error) {
	return Get[api.RollOutHistory](ctx, c, pathOf(Services, id)+"/rollout/history")
}

// PauseRollOut stops a roll-out until ResumeRollOut. It returns ErrConflict if it is over.
func (c *Client) PauseRollOut(ctx context.Context, id api.ServiceID) (api.RollOut, error) {
	return c.rollOut(ctx, id, "pause", nil)
}

// ResumeRollOut continues a roll-out that was paused or has failed. It returns ErrConflict for any
// other.
func (c *Client) ResumeRollOut(ctx context.Context, id api.ServiceID) (api.RollOut, error) {
	return c.rollOut(ctx, id, "resume", nil)
}

// PromoteRollOut continues a roll-out beyond its canaries. It returns ErrConflict if it does not
// wait for that.
func (c *Client) PromoteRollOut(ctx context.Context, id api.ServiceID) (api.RollOut, error) {
	return c.rollOut(ctx, id, "promote", nil)
}

// UndoRollOut applies an earlier version of a service; 0 means the last healthy one. It returns
// ErrNotFound if the history does not have the version, and ErrConflict if it is the present one.
func (c *Client) UndoRollOut(ctx context.Context, id api.ServiceID, to api.Revision) (api.RollOut, error) {
	return c.rollOut(ctx, id, "undo", api.Undo{To: to})
}

func (c *Client) rollOut(ctx context.Context, id api.ServiceID, action string, body any) (api.RollOut, error) {
	return send[api.RollOut](ctx, c, Request{Method: http.MethodPost, Path: pathOf(Services, id) + "/rollout/" + action, Body: body})
}
