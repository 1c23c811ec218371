// Package netbooks tests that the network state of all tiers converges: with real cores of root and
// clusters and models of nodes, on a network that loses, duplicates and reorders messages, and with
// restarts. It has only tests.
package netbooks
