// Package tunnel is the encrypted transport between nodes. It reads packets from a TUN device, seals each
// in one UDP datagram to the node of its destination, and writes packets from other nodes to the device.
// It reads and writes packets of up to 64 KB and segments them itself. A datagram carries exactly one
// inner packet, so a lost datagram affects no other packet.
//
// Before SetPeer the caller verifies that the peer's certificate binds its key. It also chooses the path
// (SetPath, from what Hooks report), and sets the routes and addresses of the device.
//
//	e, err := tunnel.New(tunnel.Config{Device: dev, Key: key, Hooks: hooks})
//	e.SetSelf(tunnel.Lease{Ranges: ranges, Subnet: subnet, Relays: relays})
//	e.SetPeer(peer)                       // may send from its subnets
//	e.SetTries(peer.Key, paths...)        // where handshakes are tried, all at once
//	e.SetPath(peer.Key, paths[0])         // where data goes
//	err = e.Run(ctx)
//
// The methods for choosing paths may be called at any time and from hooks:
//
//	SetPath(peer api.PeerKey, p Path)
//	SetTries(peer api.PeerKey, ps ...Path)
//	SetMTU(peer api.PeerKey, n int)                                // of inner packets
//	Connect(peer api.PeerKey)                                      // starts a handshake, if there is no session
//	SendControl(peer api.PeerKey, via Path, payload []byte) error  // needs a session; up to MaxControl bytes
//	SendRaw(to netip.AddrPort, datagram []byte) error              // first byte RawType or more
//	Receive(from Path, datagram []byte)                            // a datagram that came over a relay's TLS; not from Control
//	Stats() []Stats
//	Total() Total                                                  // including removed peers
//
// Until SetPath is called for a peer, data takes the path of its handshake. If that path was a relay,
// data takes the first relay in SetTries.
package tunnel
