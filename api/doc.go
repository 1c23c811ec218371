// Package api defines the types that Treeline's tiers and clients share: the SLA, the objects
// of the REST APIs, states, and kinds of errors. It imports only the standard library, because
// every package may import it.
//
// Errors of this package wrap one of its kinds, such as ErrInvalid; test them with errors.Is. An id
// contains the ids of the objects that it belongs to:
//
//	id := api.ServiceID("acme/shop.prod.web.v1").Instance(2) // acme/shop.prod.web.v1#2
package api
