package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/internal/problem"
)

// bodyWait limits the time to receive a body.
const bodyWait = 30 * time.Second

// maxSmallBody limits the bodies of all operations except those that take an SLA, an addon, a config or a
// secret.
const maxSmallBody = 64 << 10

// bodyLimit returns the maximum size of a request's body in bytes. Only SLA documents, addons, configs and
// secrets are large; other bodies are parsed without a queue, some of them before sign-in.
func bodyLimit(r *http.Request) int64 {
	if takesValues(r) {
		return maxValueBody
	}
	if r.URL.Path == "/v1/apps" || r.URL.Path == "/v1/apps:plan" {
		return maxBody
	}
	if r.URL.Path == "/v1/addons" || strings.HasPrefix(r.URL.Path, "/v1/addons/") {
		return maxAddonBody
	}
	return maxSmallBody
}

// readBody reads the body within bodyLimit before it is parsed. It refuses a larger Content-Length
// without reading.
func readBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit := bodyLimit(r)
		large := problem.New(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d KiB", limit>>10))
		if r.ContentLength > limit {
			problem.Write(w, large)
			return
		}
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWait))
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
			var tooLarge *http.MaxBytesError
			if errors.As(err, &tooLarge) {
				problem.Write(w, large)
				return
			}
			if err != nil {
				problem.Write(w, problem.New(http.StatusBadRequest, "cannot read the body"))
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			r.ContentLength = int64(len(body))
		}
		next.ServeHTTP(w, r)
	})
}
