package wiring

import (
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// countBytes counts the bytes of requests of clusters and their answers, without TLS, headers, and the streams of
// people (logs, exec, …).
func countBytes(r prometheus.Registerer, next http.Handler) http.Handler {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "treeline_control_bytes_total", Help: "Bytes of the messages between tiers, without TLS and headers.",
	}, []string{"link", "direction"})
	r.MustRegister(total)
	in, out := total.WithLabelValues("clusters", "in"), total.WithLabelValues("clusters", "out")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/v1/cluster/streams/") {
			r.Body = countingBody{r.Body, in}
			w = countingWriter{w, out}
		}
		next.ServeHTTP(w, r)
	})
}

type countingBody struct {
	io.ReadCloser
	n prometheus.Counter
}

func (b countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(float64(n))
	return n, err
}

type countingWriter struct {
	http.ResponseWriter
	n prometheus.Counter
}

func (w countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.n.Add(float64(n))
	return n, err
}

// Unwrap is for http.ResponseController.
func (w countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
