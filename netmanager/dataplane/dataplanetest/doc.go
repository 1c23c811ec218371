// Package dataplanetest holds a dataplane.Plane to its promises, on a small
// world of real network namespaces: two hosts with three containers each, joined by
// plain routes, by VXLAN or by a tunnel device, and an outside that has neither.
// It makes devices and routes as netmanager/link does and knows nothing of how a
// plane works. It needs root and leaves nothing in the namespace it is called from.
//
//	func TestPlane(t *testing.T) {
//		dataplanetest.Run(t, func(t testing.TB) dataplane.Plane { return nft.New() })
//	}
package dataplanetest
