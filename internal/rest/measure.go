package rest

import (
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
)

// Observe is called for each request that was answered, with the pattern of its route; "" if no route matches.
type Observe func(method, route string, status int, took time.Duration)

// Measure returns a middleware that measures requests. Streams are not measured, because they last as long as
// their reader wants.
func Measure(observe Observe) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		if observe == nil {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			began, ww := time.Now(), middleware.NewWrapResponseWriter(w, r.ProtoMajor)
			next.ServeHTTP(ww, r)
			kind := ww.Header().Get("Content-Type")
			if ww.Status() == http.StatusSwitchingProtocols || strings.HasPrefix(kind, "text/event-stream") || strings.HasPrefix(kind, "application/octet-stream") {
				return
			}
			observe(r.Method, chi.RouteContext(r.Context()).RoutePattern(), ww.Status(), time.Since(began))
		})
	}
}
