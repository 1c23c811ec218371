// Package ca signs certificates: the root's authority vouches for clusters'
// authorities, and a cluster's for its nodes. The signer decides every name;
// of a request it takes the public key, whose possession the request proves.
//
// It decides nothing about who may ask (package jointoken) and checks no peers
// (package trust).
//
//	root, err := ca.NewRoot(now)
//	key, csr, err := ca.NewRequest()                         // at the cluster
//	chain, err := root.SignCluster(now, csr, "munich")       // at the root
//	munich, err := ca.New(ca.Pair{Chain: chain, Key: key})   // at the cluster
//	chain, err = munich.SignNode(now, csr2, "n7")
package ca
