package wire

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// StreamRequest requests a stream from the tier below, which opens POST <streams>/<id> at the
// requesting tier and sends the bytes as the body. A Duplex stream gets the requester's bytes as the
// answer to GET <streams>/<id>. Bulk data does not use MQTT, and an upper tier
// cannot connect to clusters and nodes. For "api" the bytes are an HTTP/1.1 response.
type StreamRequest struct {
	ID       string         `json:"id"`   // unguessable, used once
	Kind     string         `json:"kind"` // "logs", "loglines", "api", "net", "volume", "exec", "attach", "portforward", "snapshot", "restore", and those below
	Instance api.InstanceID `json:"instance,omitempty"`
	Epoch    api.Epoch      `json:"epoch,omitempty"`
	Follow   bool           `json:"follow,omitempty"`
	Tail     int            `json:"tail,omitempty"` // number of lines from the end; -1: all
	Method   string         `json:"method,omitempty"`
	Path     string         `json:"path,omitempty"` // with query; api: of the cluster's API; net: of the netmanager's API; volume, snapshot, restore: the volume's id
	Body     []byte         `json:"body,omitempty"`
	Exec     *api.Exec      `json:"exec,omitempty"`  // of kind "exec"; of kind "attach" with input or terminal, without Args
	Lines    *LogLines      `json:"lines,omitempty"` // of kind "loglines"
	Copy     *VolumeCopy    `json:"copy,omitempty"`  // of kinds StreamSendVolume and StreamReceiveVolume
	// Replica is the URL of the replica of the cluster that waits for the stream, for a node. Empty: the
	// cluster has none.
	Replica string `json:"replica,omitempty"`
	// For identifies the tenant and, by a digest, the user of the stream, for fair shares at
	// lower tiers. It is not a credential. Empty: unknown.
	For string `json:"for,omitempty"`
	// Token is set between root and cluster only. The root delegates it for this request
	// (see CallObject), and the cluster accepts it once.
	Token string `json:"token,omitempty"`
}

// LogLines are further conditions of logs. Requests with them have a kind of their own, which earlier
// releases refuse instead of ignoring the conditions.
type LogLines struct {
	Since      time.Duration `json:"since,omitempty"` // only lines of the last Since
	Timestamps bool          `json:"timestamps,omitempty"`
	Previous   bool          `json:"previous,omitempty"` // of the attempt before
}

// The kinds of streams for moves of volumes, between cluster and node only. Path is the id of the volume, Instance and Epoch are
// the placement that had it at the source. The bytes are those of package treecopy.
const (
	StreamSendVolume    = "sendvolume"
	StreamReceiveVolume = "receivevolume"
	StreamDiscardVolume = "discardvolume" // deletes what a move has left
)

// VolumeCopy is what is to be copied.
type VolumeCopy struct {
	SizeMB   int64  `json:"size_mb,omitempty"` // of the volume; for the target
	Final    bool   `json:"final,omitempty"`   // no placement has the volume, and the target gets it
	Code     string `json:"code,omitempty"`    // the image of the service, which the target can fetch in advance
	Platform string `json:"platform,omitempty"`
	// Values has the account of the image's registry; nodes of earlier releases fetch without it.
	Values []ValueRef `json:"values,omitempty"`
}

// Duplex reports whether the stream carries bytes in both directions: a yamux session for portforward,
// otherwise frames (package frames).
func (r StreamRequest) Duplex() bool {
	switch r.Kind {
	case "exec", "attach", "portforward", StreamSendVolume, StreamReceiveVolume:
		return true
	}
	return r.OfVolume()
}

// OfVolume reports whether the stream copies a volume: out of it for snapshot, into it for restore.
func (r StreamRequest) OfVolume() bool { return r.Kind == "snapshot" || r.Kind == "restore" }

// CallObject returns a text that identifies the request. The root binds the delegated token to
// it: a cluster refuses the token with another request.
func (r StreamRequest) CallObject() string {
	what := fmt.Sprintf("%s %s %d %t %d %s %s", r.Kind, r.Instance, r.Epoch, r.Follow, r.Tail, r.Method, r.Path)
	if r.Exec != nil || r.Lines != nil {
		text, _ := json.Marshal([]any{r.Exec, r.Lines}) // strings and numbers
		what += " " + string(text)
	}
	sum := sha256.Sum256(r.Body)
	return what + " " + base64.RawURLEncoding.EncodeToString(sum[:])
}

// Revocations are the revocations of delegated tokens that the root sends to its clusters.
type Revocations struct {
	Floor   int64        `json:"floor"` // tokens with this mark or a lower one are invalid
	Mark    int64        `json:"mark"`  // the highest mark so far
	Entries []Revocation `json:"entries,omitempty"`
}

// Replicas are the URLs of all replicas of the root, which it sends when a cluster connects. A cluster
// uses at most 8 of them.
type Replicas struct {
	URLs []string `json:"urls"`
}

// Revocation invalidates the tokens of one holder with this mark or a lower one. Of is a digest
// of the holder: a user, a personal token, or all users of a topmost tenant.
type Revocation struct {
	Of   string `json:"of"`
	Mark int64  `json:"mark"`
}
