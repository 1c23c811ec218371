package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/treeline-edge/treeline/api"
)

const webhooks = "/v1/webhooks"

// CreateWebhook creates a webhook. Only this answer has its secret.
func (c *Client) CreateWebhook(ctx context.Context, n api.NewWebhook) (api.Webhook, error) {
	return send[api.Webhook](ctx, c, Request{Method: http.MethodPost, Path: webhooks, Body: n})
}

// Webhooks lists webhooks.
func (c *Client) Webhooks(ctx context.Context) ([]api.Webhook, error) {
	all, _, err := List[api.Webhook](ctx, c, webhooks, ListOptions{})
	return all, err
}

// Webhook returns a webhook with its dead letters.
func (c *Client) Webhook(ctx context.Context, id string) (api.Webhook, error) {
	return Get[api.Webhook](ctx, c, webhooks+"/"+url.PathEscape(id))
}

// RetryWebhook sends the dead letters of a webhook once more.
func (c *Client) RetryWebhook(ctx context.Context, id string) error {
	return c.do(ctx, Request{Method: http.MethodPost, Path: webhooks + "/" + url.PathEscape(id) + "/retry"})
}

func (c *Client) DeleteWebhook(ctx context.Context, id string) error {
	return c.do(ctx, Request{Method: http.MethodDelete, Path: webhooks + "/" + url.PathEscape(id)})
}
