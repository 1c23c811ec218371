package wire

import "github.com/treeline-edge/treeline/api"

// JoinCluster asks the root to take a cluster in: POST /v1/join/cluster.
type JoinCluster struct {
	Token string          `json:"token"` // the join token, whole
	CSR   string          `json:"csr"`   // PEM, for the cluster's CA
	Info  api.ClusterInfo `json:"info"`
}

// ClusterJoined answers JoinCluster, and a cluster's renewal without Block.
type ClusterJoined struct {
	Chain   string            `json:"chain"` // PEM: the cluster's CA, then the root's
	Info    api.ClusterInfo   `json:"info"`
	JWTKeys map[string]string `json:"jwt_keys"` // kid → base64url Ed25519 public key, to check people's tokens
}

// ClusterKeys answers GET /v1/cluster/keys: with which keys people's tokens are
// checked today, as in ClusterJoined.
type ClusterKeys struct {
	JWTKeys map[string]string `json:"jwt_keys"`
}

// JoinNode asks a cluster to take a node in: POST /v1/join/node.
type JoinNode struct {
	Token string       `json:"token"`
	CSR   string       `json:"csr"`
	Info  api.NodeInfo `json:"info"` // an empty ID asks the cluster to name it
}

// NodeJoined answers JoinNode, and a node's renewal.
type NodeJoined struct {
	ID      api.NodeID    `json:"id"`
	Cluster api.ClusterID `json:"cluster"`
	Chain   string        `json:"chain"`          // PEM: the node's certificate, the cluster's CA, the root's
	MQTT    string        `json:"mqtt,omitempty"` // the broker's URL; empty: the cluster's own port, ALPN "mqtt"
}

// NodeBrokers answers POST /v1/node/brokers: the addresses in Desired.Brokers.
type NodeBrokers struct {
	Brokers []string `json:"brokers"`
}

// NodePurging is the request POST /v1/node/purge: a node asks its cluster whether it is
// to delete its workloads, keys and data.
type NodePurging struct {
	Failed string `json:"failed,omitempty"` // why the last attempt failed
}

// NodePurge answers NodePurging, for the node that the client certificate names.
type NodePurge struct {
	Purge bool `json:"purge"`
}

// Renew asks for a fresh certificate for the identity of the connection.
type Renew struct {
	CSR string `json:"csr"`
}
