// Package notice is how nodes inform one another of the instances that they host: which of them
// accept no new flows any more. Orchestrators send the same in routes, but later, and not at all
// while one of them is down.
//
// A Sender decides what peers are sent (peermsg.Notice) and repeats it until they confirm. A
// Receiver keeps what peers sent.
package notice
