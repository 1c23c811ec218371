package wire

import (
	"crypto/sha256"
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// JoinCluster joins a cluster to the root: POST /v1/join/cluster.
type JoinCluster struct {
	Token string          `json:"token"` // the complete join token
	CSR   string          `json:"csr"`   // PEM, for the cluster's CA
	Info  api.ClusterInfo `json:"info"`
}

// ClusterJoined answers JoinCluster, and Renew of a cluster.
type ClusterJoined struct {
	Chain   string            `json:"chain"` // PEM: the cluster's CA, then the root's
	Info    api.ClusterInfo   `json:"info"`
	JWTKeys map[string]string `json:"jwt_keys"` // kid → base64url Ed25519 public key, to verify access tokens
	// Replicas are the URLs of all replicas of the root, at most 8; empty: the root has none.
	Replicas []string `json:"replicas,omitempty"`
}

// ClusterKeys answers GET /v1/cluster/keys: the current keys to verify access tokens, as in
// ClusterJoined.
type ClusterKeys struct {
	JWTKeys map[string]string `json:"jwt_keys"`
	Root    RootKeys          `json:"root,omitzero"`
}

// RootKeys says which keys the root's certificate authority has. The root sends it when a cluster connects and when it changes; the
// cluster renews the certificate of its own authority, unless that is of these keys. The zero value: the key was never replaced.
type RootKeys struct {
	Key    uint64 `json:"key,omitempty"`    // how many keys it had before the one that signs
	Oldest uint64 `json:"oldest,omitempty"` // the keys before this one are retired
}

// StreamRootKeys is the kind of streams that carry one RootKeysReport, between root and cluster only.
const StreamRootKeys = "rootkeys"

// RootKeysReport is a cluster's answer to a stream of kind StreamRootKeys.
type RootKeysReport struct {
	Root   RootKeys     `json:"root"`             // those of the certificate of the cluster's authority
	Behind int          `json:"behind,omitempty"` // nodes that have not connected with a certificate of the key that signs
	Nodes  []api.NodeID `json:"nodes,omitempty"`  // the first of these
}

// MaxBehindNodes limits RootKeysReport.Nodes.
const MaxBehindNodes = 10

// JoinNode joins a node to a cluster: POST /v1/join/node.
type JoinNode struct {
	Token string       `json:"token"`
	CSR   string       `json:"csr"`
	Info  api.NodeInfo `json:"info"` // with an empty ID the cluster chooses one
}

// NodeJoined answers JoinNode, and Renew of a node.
type NodeJoined struct {
	ID      api.NodeID    `json:"id"`
	Cluster api.ClusterID `json:"cluster"`
	Chain   string        `json:"chain"`          // PEM: the node's certificate, the cluster's CA, the root's
	MQTT    string        `json:"mqtt,omitempty"` // the first broker's URL; empty: the cluster's port with ALPN "mqtt"
	// Brokers are the addresses in Desired.Brokers. Empty: the cluster is of an earlier release, and its broker is MQTT.
	Brokers []string `json:"brokers,omitempty"`
	// Replicas are the URLs of all replicas of the cluster, at most 8; empty: the cluster has none.
	Replicas []string `json:"replicas,omitempty"`
}

// NodeBrokers answers POST /v1/node/brokers: the addresses in Desired.Brokers.
type NodeBrokers struct {
	Brokers []string `json:"brokers"`
}

// NodePurging is the request POST /v1/node/purge: a node asks its cluster whether to delete its
// workloads, keys and data.
type NodePurging struct {
	Failed string `json:"failed,omitempty"` // why the last attempt failed
}

// NodePurge answers NodePurging, for the node that the client certificate names.
type NodePurge struct {
	Purge bool `json:"purge"`
}

// Renew requests a new certificate for the identity of the connection.
type Renew struct {
	CSR string `json:"csr"`
	// Proof is the signature of RotationText by the present key of a cluster's authority, when CSR is for
	// a new key, which replaces it. Empty: CSR is for the present key.
	Proof []byte `json:"proof,omitempty"`
	// Retire retires the keys before the present one of a cluster's authority: their certificates are refused.
	Retire bool `json:"retire,omitempty"`
}

// RotationText returns what the key of a cluster's authority signs when another key replaces it. csr is DER.
func RotationText(id api.ClusterID, csr []byte) []byte {
	sum := sha256.Sum256(csr)
	return fmt.Appendf(nil, "treeline: the authority of cluster %s gets the key of the request %x", id, sum)
}
