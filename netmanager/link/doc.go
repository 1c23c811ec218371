// Package link makes what packets travel on: the veth pairs of instances, the
// VXLAN device, addresses, routes and neighbours. It decides nothing (that is
// netmanager/overlay's) and looks into no packet (netmanager/dataplane's). The two TUN
// devices are their readers' to open; link gives them addresses and routes.
//
//	l, err := link.New("tl")
//	was, err := link.Forwards()
//	err = l.Setup(node, local)
//	err = l.Attach(link.Attachment{Address: a, Address6: six, NetNS: "/proc/4711/ns/net", MTU: 1400})
//
// Everything is found again by what it is called or marked with: devices begin with the
// prefix, an instance's with its address in hexadecimal; routes carry a protocol number
// of ours. So any call may be repeated, and a new life takes over what it finds. The
// kernel takes routes, neighbours and queueing with their device, and a veth pair with the
// namespace of either end: nothing is left that has to be swept up one by one.
//
// Beside our own devices it changes two things on a host. It lets it forward
// (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding), and puts back in Remove what
// was set before, which whoever calls Setup has kept; a host that gets its IPv6 address
// by router advertisements needs net.ipv6.conf.<device>.accept_ra=2 to keep doing so.
// And a device that leads to a peer by plain routes gets a second link-local address,
// made of the node's IPv4 address there (Via6), by which peers route IPv6.
//
// Calls are made one at a time, on a thread in the network namespace that New was called in.
package link
