package httpapi

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// Route is an operation, for tests that walk them all.
type Route struct {
	Method, Path string
	Action       rights.Action
}

// Routes are all operations.
func (a *API) Routes() []Route {
	var all []Route
	for _, r := range a.routes {
		all = append(all, Route{r.method, r.path, r.action})
	}
	return all
}

// Placing is what of a spec is told to a cluster that does not have the instance.
var Placing = placing

// OnParse calls fn before each SLA document is parsed.
func (a *API) OnParse(fn func(doc []byte)) {
	a.parsing.decode = func(contentType string, doc []byte) (api.SLA, error) {
		fn(doc)
		return decodeSLA(contentType, doc)
	}
}
