package httpapi

import "github.com/treeline-edge/treeline/api"

// Routes returns all operations, for tests that request each.
func (a *API) Routes() []Route { return a.routes }

// PlacementSpec is the function placing, for tests.
var PlacementSpec = placementSpec

// OnParse calls fn before each SLA document is parsed.
func (a *API) OnParse(fn func(doc []byte)) {
	a.parsing.decode = func(doc document) (api.SLA, error) {
		fn(doc.body)
		return decodeSLA(doc)
	}
}

// Unrecorded are the operations that leave no record by their registration.
var Unrecorded = unrecorded
