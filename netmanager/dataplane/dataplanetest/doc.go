// Package dataplanetest tests a dataplane.Plane in real network namespaces: two hosts with
// three containers each, connected by plain routes, VXLAN or a tunnel device, and an outside
// host without a netmanager. It sets up devices and routes as netmanager/link does, and does
// not depend on the implementation of a plane. It needs root and leaves nothing in its own
// namespace.
//
//	func TestPlane(t *testing.T) {
//		dataplanetest.Run(t, func(t testing.TB) dataplane.Plane { return open(t) })
//	}
package dataplanetest
