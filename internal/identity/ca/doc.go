// Package ca signs certificates: the root's authority signs those of clusters' authorities, and a
// cluster's authority those of its nodes. The signer decides every name and uses only the public
// key of a request. Package jointoken authorizes requests; package trust verifies peers.
//
//	root, err := ca.NewRoot(now)
//	key, csr, err := ca.NewRequest()                         // at the cluster
//	chain, err := root.SignCluster(now, csr, "munich")       // at the root
//	munich, err := ca.New(ca.Pair{Chain: chain, Key: key})   // at the cluster
//	chain, err = munich.SignNode(now, csr2, "n7")
package ca
