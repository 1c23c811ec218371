// Package lab runs an installation of real daemons as processes, with a separate containerd,
// links that can be cut and disks that can be filled, on one machine in one directory. Tests
// kill parts of it and check the rest. Package bench measures with it.
//
//	l := lab.New(t, lab.Options{})
//	c := l.Cluster("munich")
//	n := c.Node("n1", lab.NodeOptions{})
//	l.Apply(lab.App("shop", lab.Process("web", 2)))
//	l.Wait("both run", l.Running("shop", "web", 2))
//	n.Kill9()
//
// It waits for events of the root's API, of the daemons' readiness and of the kernel, so that
// a measured time is that of an event. All processes of a lab end with its test; if the test
// is killed, a helper process ends them.
package lab
