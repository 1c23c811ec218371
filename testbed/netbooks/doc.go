// Package netbooks proves that the books of the overlay network agree: a real
// root core, real cluster cores, and plain twins of nodes, on a network that
// loses, doubles and reorders whatever is said, with restarts in the middle.
// Tests only.
package netbooks
