// Package oakestra serves the REST API of Oakestra's root orchestrator, /api, for the `oak` CLI and for
// scripts that use it. Each request is translated into requests to the native API (package httpapi) with
// the caller's token, so that rights, bounds and checks are the native ones.
//
// Paths, shapes and statuses are those of Oakestra v0.4.411. What differs on purpose:
//
//   - Ids are Treeline's, with "/" and "#" written "~" (see api.PathOf), instead of ObjectIDs.
//
//   - Every route except login and refresh needs a token; in Oakestra the list of clusters is public.
//
//   - A request for a service or instance that does not exist is answered with 404. Oakestra answers some of them with 200.
//
//   - Passwords are never in an answer.
//
//     h := oakestra.New(oakestra.Options{Native: web.Handler()})
package oakestra

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/rest"
)

// Options configures the API.
type Options struct {
	Native http.Handler // /v1
	// DoubleJSON encodes the answers twice (a JSON string with JSON in it) that Oakestra encodes twice.
	// The published scripts of experiments need it; the CLIs accept both forms.
	DoubleJSON bool
	Log        *slog.Logger // default slog.Default()
}

// maxBody bounds the body of a request; the native API has its own bounds for what it is sent.
const (
	maxBody  = 1 << 20
	bodyWait = 30 * time.Second
)

// handler answers a request with a value, which is sent as JSON with status 200.
type handler func(call) (any, error)

// call is a request and the native API with its caller's token.
type call struct {
	context.Context
	*client.Client

	request *http.Request
	token   string
	body    []byte
}

// New returns the handler of /api.
func New(o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	mux := http.NewServeMux()
	on := func(route string, h handler) { mux.Handle(route, o.serve(h, false)) }
	twice := func(route string, h handler) { mux.Handle(route, o.serve(h, o.DoubleJSON)) }

	on("POST /api/auth/login", login)
	on("POST /api/auth/refresh", refresh)
	on("GET /api/permission/{user}", permission)
	twice("GET /api/applications", applications)
	twice("GET /api/applications/{user}", applications)
	twice("POST /api/application", createApplications)
	on("GET /api/application/{id}", getApplication)
	on("DELETE /api/application/{id}", deleteApplication)
	on("POST /api/service", addServices)
	twice("GET /api/service/{id}", getService)
	on("DELETE /api/service/{id}", deleteService)
	twice("GET /api/services", services)
	twice("GET /api/services/{id}", services)
	on("POST /api/service/{id}/instance", addInstance)
	on("DELETE /api/service/{id}/instance/{number}", deleteInstance)
	on("GET /api/clusters", clusters)
	on("GET /api/clusters/active", activeClusters)

	on("/", func(c call) (any, error) {
		return nil, problem.New(http.StatusNotImplemented,
			c.request.Method+" "+c.request.URL.Path+" of Oakestra's API is not served; use the native API, /v1/docs")
	})
	return rest.Recover(o.Log, "root")(oneForm(mux))
}

// oneForm removes the slash at the end of a path: Oakestra's paths of collections have one, and its clients
// follow the redirect from the other form.
func oneForm(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.Clone(r.Context())
		r.URL.Path = strings.TrimSuffix(r.URL.Path, "/")
		r.URL.RawPath = strings.TrimSuffix(r.URL.RawPath, "/")
		next.ServeHTTP(w, r)
	})
}

func (o Options) serve(h handler, twice bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, err := o.answer(w, r, h)
		var text []byte
		if err == nil {
			text, err = json.Marshal(out)
		}
		if err == nil && twice {
			text, err = json.Marshal(string(text))
		}
		if err != nil {
			fail(w, o.Log, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(text) // an error means that the client has gone
	}
}

func (o Options) answer(w http.ResponseWriter, r *http.Request, h handler) (any, error) {
	token, err := rest.Bearer(r)
	if err != nil {
		return nil, err
	}
	c := call{Context: r.Context(), request: r, token: token}
	var tokens client.Tokens
	if token != "" {
		tokens = client.Static(token)
	}
	c.Client, err = client.New(client.Options{URL: "https://native", Tokens: tokens, HTTP: &http.Client{Transport: inProcess{o.Native, r.RemoteAddr}}})
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(r.URL.Path, "/api/auth/") { // before the body is read
		if _, err := c.WhoAmI(c); err != nil {
			return nil, err
		}
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWait))
	c.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, problem.New(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d KiB", maxBody>>10))
	case err != nil:
		return nil, problem.New(http.StatusBadRequest, "cannot read the body")
	}
	return h(c)
}

// decode reads the body into v. Oakestra's scripts do not always send a Content-Type.
func (c call) decode(v any) error {
	if err := json.Unmarshal(c.body, v); err != nil {
		return problem.New(http.StatusUnprocessableEntity, "the body is not the expected JSON: "+err.Error())
	}
	return nil
}

// id returns the id in the path.
func (c call) id() string { return api.FromPath(c.request.PathValue("id")) }

// fail writes an error in the shape of flask-smorest, or of flask-jwt-extended if the caller has no right.
func fail(w http.ResponseWriter, log *slog.Logger, r *http.Request, err error) {
	var p *api.Problem
	if !errors.As(err, &p) {
		of := problem.Of(err, "the root's log")
		if of.Status == http.StatusInternalServerError {
			log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
		}
		for k, v := range of.GetHeaders() {
			w.Header()[k] = v
		}
		p = &of.Problem
	}
	body := map[string]any{"message": p.Error()}
	if p.Status != http.StatusUnauthorized && p.Status != http.StatusForbidden {
		body["code"], body["status"] = p.Status, http.StatusText(p.Status)
		if len(p.Errors) > 0 {
			faults := map[string]string{}
			for _, e := range p.Errors {
				faults[e.Pointer] = e.Detail
			}
			body["errors"] = faults
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(body)
}

// inProcess passes requests to the native API in this process. remote is the caller's address: the native API
// limits sign-ins and requests per address.
type inProcess struct {
	native http.Handler
	remote string
}

func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.RemoteAddr, r.RequestURI = t.remote, r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := &recorded{header: http.Header{}, status: http.StatusOK}
	t.native.ServeHTTP(w, r)
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

// recorded is an answer in memory. The native API's answers have bounded sizes; streams are not requested.
type recorded struct {
	header http.Header
	status int
	wrote  bool
	body   bytes.Buffer
}

func (w *recorded) Header() http.Header { return w.header }

func (w *recorded) WriteHeader(status int) {
	if !w.wrote {
		w.status, w.wrote = status, true
	}
}

func (w *recorded) Write(b []byte) (int, error) {
	w.wrote = true
	return w.body.Write(b)
}
