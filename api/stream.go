package api

// StreamRequest asks the level below to dial a stream out: bulk bytes never ride
// on MQTT and nobody dials a cluster or a node. The asked side opens
// POST <streams>/<id> at the asking side and sends the bytes as the body. For
// "api" those are a whole HTTP/1.1 response.
type StreamRequest struct {
	ID       string     `json:"id"`   // unguessable, used once
	Kind     string     `json:"kind"` // "logs", "api", "net"
	Instance InstanceID `json:"instance,omitempty"`
	Epoch    Epoch      `json:"epoch,omitempty"`
	Follow   bool       `json:"follow,omitempty"`
	Tail     int        `json:"tail,omitempty"` // lines from the end; -1 all
	Method   string     `json:"method,omitempty"`
	Path     string     `json:"path,omitempty"` // api: the request at the cluster's own API, with query; net: at the node's netmanager's
	Body     []byte     `json:"body,omitempty"`
	Token    string     `json:"token,omitempty"` // api: the asker's token; the cluster checks the rights again
}
