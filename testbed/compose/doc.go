// Package compose tests an installation in containers of Docker: two roots, a cluster with two replicas,
// one with the embedded broker, four workers, a store for the replicas, and Prometheus. The script run in
// this directory starts it, runs these tests, and removes it. README.md describes it.
package compose
