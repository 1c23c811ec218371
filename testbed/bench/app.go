package main

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// idler returns a service of containers that run until they are stopped.
func idler(l *lab.Lab, replicas int) api.Microservice {
	m := l.Container("web", replicas)
	m.Cmd = []string{"/app", "sleep"}
	return m
}
