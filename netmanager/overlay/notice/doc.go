// Package notice informs other nodes of the instances on this node that do not accept new flows any more.
// Routes from the orchestrators have the same information, but later, and not while one of them is down.
//
// A Sender decides which notices (peermsg.Notice) peers get, and repeats them until they confirm. A
// Receiver keeps the notices of peers.
package notice
