package streams

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	"github.com/treeline-edge/treeline/internal/call"
)

// Dial is the dialled side: it posts what open yields to base/<id>, or the
// reason why there is nothing, and returns when the stream has ended. It closes
// what open yielded, also in the midst of a read when the asker has gone.
func Dial(ctx context.Context, c *http.Client, base, id string, open func(context.Context) (io.ReadCloser, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kind := "application/octet-stream"
	body, err := open(ctx)
	if err != nil {
		text, _ := json.Marshal(call.Problem(err)) // strings and numbers
		kind, body = "application/problem+json", io.NopCloser(bytes.NewReader(text))
	}
	defer body.Close()
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/"+url.PathEscape(id), body)
	if err != nil {
		return err
	}
	post.Header.Set("Content-Type", kind)
	resp, err := call.Do(c, post)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
