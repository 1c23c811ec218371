package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
)

// root is a server that stands for a root with one application, acme/shop.prod.
func root() *httptest.Server {
	return httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shop := api.App{ID: "acme/shop.prod", Wanted: 2, Running: 1}
		switch {
		case r.Header.Get("Accept") == "text/event-stream":
			shop.Running = 2
			change, _ := json.Marshal(map[string]any{"id": shop.ID, "revision": 8, "object": shop})
			fmt.Fprintf(w, "event: change\nid: 8\ndata: %s\n\n", change)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case r.URL.Path == "/v1/apps":
			_ = json.NewEncoder(w).Encode(api.Page[api.App]{Items: []api.App{shop}, Revision: 7})
		default:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(api.Problem{Status: 404, Code: "not_found", Detail: "no such object"})
		}
	}))
}

// List the applications and follow their changes without a gap.
func Example() {
	server := root()
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	// With a real root: client.Options{URL: "https://10.0.0.5:7443", CA: pem, Tokens: …}
	c, err := client.New(client.Options{URL: server.URL, HTTP: server.Client(), Tokens: client.Static("token")})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	apps, revision, err := c.Apps(ctx, client.ListOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, app := range apps {
		fmt.Printf("%s: %d of %d instances\n", app.ID, app.Running, app.Wanted)
	}
	for change, err := range client.Watch[api.App](ctx, c, client.Apps, client.WatchOptions{Since: revision}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		app := change.Object
		fmt.Printf("%s: %d of %d instances\n", app.ID, app.Running, app.Wanted)
		if app.Running == app.Wanted {
			break
		}
	}
	// Output:
	// acme/shop.prod: 1 of 2 instances
	// acme/shop.prod: 2 of 2 instances
}

// Errors have a kind, and contain the server's problem.
func ExampleClient_App() {
	server := root()
	defer server.Close()
	c, _ := client.New(client.Options{URL: server.URL, HTTP: server.Client(), Tokens: client.Static("token")})
	_, err := c.App(context.Background(), "acme/none.prod")
	fmt.Println(errors.Is(err, api.ErrNotFound))
	if problem, ok := errors.AsType[*api.Problem](err); ok {
		fmt.Println(problem.Status, problem.Code)
	}
	// Output:
	// true
	// 404 not_found
}
