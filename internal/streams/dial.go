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

// Dial is the lower tier's side: it posts the stream that open returns, or open's error, to
// base/<id>, and returns when the stream has ended. When the requester closes its end, Dial closes
// the stream, which interrupts a read.
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
