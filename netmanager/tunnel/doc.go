// Package tunnel is the encrypted path between nodes: it takes whole packets from
// a TUN device, seals each in one UDP datagram for the node that its destination
// lives on, and gives back to the device what comes from others. It does what the
// kernel's offloads do for everybody else: it reads and writes packets of 64 KB
// and cuts them itself, so that a datagram carries exactly one inner packet and a
// lost one costs no other.
//
// It leaves to others who a peer is and whether its certificate binds its key
// (SetPeer is given proven peers), which of the possible paths is the right one
// (SetPath; Hooks tell all that one needs to decide), and routes and addresses of
// the device.
//
//	e, err := tunnel.New(tunnel.Config{Device: dev, Key: key, Hooks: hooks})
//	e.SetSelf(tunnel.Lease{Ranges: ranges, Subnet: subnet, Relays: relays})
//	e.SetPeer(peer)                       // who may send, and which subnets are its
//	e.SetTries(peer.Key, paths...)        // where handshakes are tried, all at once
//	e.SetPath(peer.Key, paths[0])         // where data goes
//	err = e.Run(ctx)
//
// Whoever chooses paths uses these methods, all safe at any time and from hooks:
//
//	SetPath(peer api.PeerKey, p Path)
//	SetTries(peer api.PeerKey, ps ...Path)
//	SetMTU(peer api.PeerKey, n int)                                // of inner packets
//	Connect(peer api.PeerKey)                                      // handshake now, if there is no session
//	SendControl(peer api.PeerKey, via Path, payload []byte) error  // needs a session; up to MaxControl bytes
//	SendRaw(to netip.AddrPort, datagram []byte) error              // first byte RawType or more
//	Receive(from Path, datagram []byte)                            // what came over a relay's TLS; not from Control
//	Stats() []Stats
//	Total() Total                                                  // of gone peers too
//
// Until SetPath is called for a peer, data goes where its handshake came from, or
// through the relay among its tries if that was a relay.
package tunnel
