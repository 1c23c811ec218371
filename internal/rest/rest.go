// Package rest is shared by the REST APIs of the root and of the clusters: their OpenAPI
// configuration, answers for unknown paths and panics, and short forms of huma's descriptions.
//
//	nodes := rest.Tag("nodes")
//	huma.Register(api, huma.Operation(nodes.Get("/v1/nodes/{id}", "Get node", 404)), getNode)
package rest

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/problem"
)

// Body is the input or output of an operation that has only a body.
type Body[T any] struct{ Body T }

// None is the input or output of an operation without parameters or body.
type None struct{}

// Config returns the configuration of an API. It serves openapi.json but none of huma's pages,
// because these load scripts from a CDN. token describes the accepted bearer tokens.
func Config(title, version, description, token string) huma.Config {
	version = cmp.Or(version, "dev")
	c := huma.DefaultConfig(title, version)
	c.Info.Description = description
	c.DocsPath = ""
	c.OpenAPIPath = "/v1/openapi"
	c.SchemasPath = ""
	c.CreateHooks = nil // no $schema links in answers
	c.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"bearer": {Type: "http", Scheme: "bearer", Description: token},
	}
	return c
}

// Router returns a router that answers requests for unknown paths and methods with problems.
func Router(middlewares ...func(http.Handler) http.Handler) chi.Router {
	r := chi.NewRouter()
	r.Use(middlewares...)
	r.NotFound(func(w http.ResponseWriter, r *http.Request) {
		problem.Write(w, problem.New(http.StatusNotFound, "no such path: "+r.URL.Path+"; /v1/openapi.json lists them"))
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		problem.Write(w, problem.New(http.StatusMethodNotAllowed, r.Method+" is not supported on "+r.URL.Path))
	})
	return r
}

// Recover returns a middleware that answers a request that panics with status 500 and logs
// it. daemon, such as "root", names the log in the answer.
func Recover(log *slog.Logger, daemon string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				e := recover()
				if e == nil {
					return
				}
				if err, ok := e.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(e)
				}
				log.Error("request panicked", "method", r.Method, "path", r.URL.Path, "panic", e)
				problem.Write(w, problem.New(http.StatusInternalServerError, "internal error; see the "+daemon+"'s log"))
			}()
			next.ServeHTTP(w, r)
		})
	}
}

// tokenProtocol begins the WebSocket subprotocol with which a browser sends its token, because it
// cannot set the header Authorization of a WebSocket.
const tokenProtocol = "treeline.token."

// Bearer returns the bearer token of a request, or "" if it has none: that of the header
// Authorization or, of a WebSocket without this header, that among its subprotocols. It fails with
// ErrUnauthenticated if the header has another scheme.
func Bearer(r *http.Request) (string, error) {
	h := r.Header.Get("Authorization")
	token, ok := strings.CutPrefix(h, "Bearer ")
	switch {
	case ok:
		return token, nil
	case h != "":
		return "", fmt.Errorf("the Authorization header is not \"Bearer <token>\": %w", api.ErrUnauthenticated)
	case !strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		return "", nil
	}
	for _, list := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(list, ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(p), tokenProtocol); ok {
				return token, nil
			}
		}
	}
	return "", nil
}

// DropBearer removes what Bearer returns from a request.
func DropBearer(r *http.Request) {
	r.Header.Del("Authorization")
	r.Header.Del("Sec-WebSocket-Protocol")
}

// Local reports whether a request comes from this machine.
func Local(r *http.Request) bool {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Tag is the group of an operation in the description of an API.
type Tag string

// Operation is an operation under construction. Its methods return a copy.
type Operation huma.Operation

// Get describes an operation that reads. errors are its error statuses, in addition to those of all
// operations.
func (t Tag) Get(path, summary string, errors ...int) Operation {
	return t.operation(http.MethodGet, path, summary, 0, errors)
}

// Post describes an operation that triggers an action.
func (t Tag) Post(path, summary string, errors ...int) Operation {
	return t.operation(http.MethodPost, path, summary, 0, errors)
}

// Create describes a POST that is answered with status 201.
func (t Tag) Create(path, summary string, errors ...int) Operation {
	return t.operation(http.MethodPost, path, summary, http.StatusCreated, errors)
}

// Put describes an operation that replaces.
func (t Tag) Put(path, summary string, errors ...int) Operation {
	return t.operation(http.MethodPut, path, summary, 0, errors)
}

// Delete describes an operation that removes, and is answered with status 204.
func (t Tag) Delete(path, summary string, errors ...int) Operation {
	return t.operation(http.MethodDelete, path, summary, http.StatusNoContent, errors)
}

func (t Tag) operation(method, path, summary string, status int, errors []int) Operation {
	return Operation{
		Method: method, Path: path, Summary: summary, DefaultStatus: status, Tags: []string{string(t)}, Errors: errors,
	}
}

// Named sets the operation's id, which becomes a name in generated clients.
func (o Operation) Named(id string) Operation {
	o.OperationID = id
	return o
}

func (o Operation) About(text string) Operation {
	o.Description = text
	return o
}

// Answers describes the answer of status 200, for operations whose output type does not.
func (o Operation) Answers(description, mediaType string, schema *huma.Schema) Operation {
	o.Responses = map[string]*huma.Response{"200": {
		Description: description, Content: map[string]*huma.MediaType{mediaType: {Schema: schema}},
	}}
	return o
}

// RenewStream is the input of the operation that renews a stream, and StreamLife its answer.
type (
	RenewStream struct {
		ID string `path:"id" maxLength:"64" doc:"The value of Treeline-Stream."`
	}
	StreamLife struct {
		Seconds float64 `json:"life_seconds" doc:"For how long the stream continues; 0: as long as the token is valid."`
	}
)

// AboutRenewal describes the operation that renews a stream.
const AboutRenewal = "A stream (logs, captures) ends when the token expires that opened it. Its answer has the headers Treeline-Stream and " +
	"Treeline-Stream-Life (seconds). After this request with a new token of the same user and the same rights, it continues until that token expires."
