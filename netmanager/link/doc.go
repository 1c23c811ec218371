// Package link sets up devices and routes: the veth pairs of instances, the VXLAN device,
// addresses, routes and neighbours. Package netmanager/overlay decides which exist, and
// netmanager/dataplane processes packets. The two TUN devices are opened by their readers; link
// sets their addresses and routes.
//
//	l, err := link.New("tl")
//	was, err := link.Forwards()
//	err = l.Setup(node, local)
//	err = l.Attach(link.Attachment{Address: a, Address6: six, NetNS: "/proc/4711/ns/net", MTU: 1400})
//
// The package keeps no state. Device names begin with the prefix, an instance's continues with
// its address in hexadecimal, and routes carry RouteProtocol. Therefore every call may be
// repeated, and a later start takes over what it finds. The kernel deletes routes, neighbours
// and queueing disciplines with their device, and a veth pair with either namespace.
//
// Besides its own devices the package changes two settings of the host. Setup enables forwarding
// (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding), and Remove restores the former values,
// which the caller has kept. A host that gets its IPv6 address by router advertisements then
// needs net.ipv6.conf.<device>.accept_ra=2. A device that leads to a peer by plain routes gets
// a second link-local address made of the node's IPv4 address there (Via6), by which peers route
// IPv6.
//
// Calls must not overlap, and must be made in the network namespace that New was called in.
package link
