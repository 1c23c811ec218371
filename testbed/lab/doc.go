// Package lab runs Treeline as it is: the real daemons as processes, a containerd
// of its own, links that can be cut, disks that can be filled, all on one machine
// and under a directory of its own. Tests kill parts of it and see what the rest
// makes of that; package bench measures on it.
//
//	l := lab.New(t, lab.Options{})
//	c := l.Cluster("munich")
//	n := c.Node("n1", lab.NodeOptions{})
//	l.Apply(lab.App("shop", lab.Process("web", 2)))
//	l.Wait("both run", l.Running("shop", "web", 2))
//	n.Kill9()
//
// It waits for what the root's API, the daemons' readiness and the kernel tell, so
// that a figure is the moment of an event. Whatever a lab started is ended with
// its test, by a helper process too should the test itself be killed.
package lab
