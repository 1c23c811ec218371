package standby

import (
	"net/http"

	"github.com/treeline-edge/treeline/internal/daemon/metrics"
	"github.com/treeline-edge/treeline/internal/rest"
)

// serveMetrics serves the metrics of a standby's process, so that Prometheus sees it as up. Others than this machine
// need the right to the metrics of the active replica, which next asks: only that one knows the users.
func serveMetrics(next http.Handler) http.Handler {
	own := metrics.Handler(metrics.New())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !rest.Local(r) {
			ask := r.Clone(r.Context())
			ask.Method, ask.Body, ask.ContentLength = http.MethodHead, http.NoBody, 0
			ask.URL.Path, ask.URL.RawPath, ask.URL.RawQuery = "/metrics", "", ""
			ask.RequestURI = ask.URL.RequestURI()
			ask.Header = http.Header{"Authorization": r.Header.Values("Authorization")}
			v := &verdict{w: w, header: http.Header{}}
			next.ServeHTTP(v, ask)
			if !v.allowed {
				return
			}
		}
		own.ServeHTTP(w, r)
	})
}

// verdict is an answer that is dropped if it allows the request, and passed on otherwise.
type verdict struct {
	w                http.ResponseWriter
	header           http.Header
	allowed, decided bool
}

// Header implements http.ResponseWriter.
func (v *verdict) Header() http.Header { return v.header }

// WriteHeader implements http.ResponseWriter.
func (v *verdict) WriteHeader(status int) {
	if v.decided {
		return
	}
	v.decided, v.allowed = true, status == http.StatusOK
	if v.allowed {
		return
	}
	for name, values := range v.header {
		v.w.Header()[name] = values
	}
	v.w.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (v *verdict) Write(b []byte) (int, error) {
	v.WriteHeader(http.StatusOK)
	if v.allowed {
		return len(b), nil
	}
	return v.w.Write(b)
}
