// Package api is Treeline's contract: the SLA a developer hands in, the objects
// that the orchestrators show, and the messages that the three tiers exchange.
// It imports the standard library only, so that anything may import it.
//
// What decides belongs to the cores (root, cluster, node), what transports
// belongs to their adapters; api says only what words mean. An instance is
// named once and everywhere the same:
//
//	id := api.ServiceID("acme/shop.prod.web.v1").Instance(2) // acme/shop.prod.web.v1#2
package api
