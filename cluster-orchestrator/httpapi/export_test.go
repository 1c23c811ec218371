package httpapi

import "github.com/danielgtaylor/huma/v2"

// OpenAPI returns the API's description, as in openapi.json.
func (a *API) OpenAPI() *huma.OpenAPI { return a.huma.OpenAPI() }

// Unrecorded are the operations that leave no record by their registration.
var Unrecorded = unrecorded
