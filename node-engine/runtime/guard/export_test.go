package guard

import "context"

// List returns the deadlines of the guard, by wire.Key.String.
func (c *Client) List(ctx context.Context) (map[string]deadline, error) {
	a, err := c.do(ctx, order{Op: "list"})
	return a.Held, err
}
