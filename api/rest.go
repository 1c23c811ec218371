package api

import (
	"net/url"
	"strings"
	"time"
)

// Problem is an error of the HTTP APIs: RFC 9457 problem details, application/problem+json. It
// wraps the kind of error of its status, for errors.Is.
type Problem struct {
	Type      string         `json:"type"`  // stable URI, ends in Code
	Title     string         `json:"title"` // of the type
	Status    int            `json:"status"`
	Code      string         `json:"code"`             // stable, for programs
	Detail    string         `json:"detail,omitempty"` // about this occurrence, for people
	Errors    []ProblemField `json:"errors,omitempty"`
	Retryable bool           `json:"retryable,omitempty"` // the same request may succeed later
}

// ProblemField is one fault of a request.
type ProblemField struct {
	Pointer string `json:"pointer,omitempty"` // JSON pointer into the body
	Where   string `json:"where,omitempty"`   // or another place: "query.limit", "header.If-Match"
	Detail  string `json:"detail"`
}

// ProblemType returns the URI of a problem's code.
func ProblemType(code string) string { return "https://treeline.dev/problems/" + code }

// Error returns the detail, and a line for each of Errors.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Detail)
	if p.Detail == "" {
		b.WriteString(p.Title)
	}
	for _, e := range p.Errors {
		b.WriteString("\n  ")
		if at := e.Pointer + e.Where; at != "" {
			b.WriteString(at + ": ")
		}
		b.WriteString(e.Detail)
	}
	return b.String()
}

// Unwrap returns the kind of error of the status.
func (p *Problem) Unwrap() error { return KindOf(p.Status) }

// Page is one page of a list. A watch since Revision misses no change. Next is the cursor of the
// next page; empty on the last.
type Page[T any] struct {
	Items    []T      `json:"items"`
	Revision Revision `json:"revision"`
	Next     string   `json:"next,omitempty"`
}

// Applied is the answer to PUT /v1/apps: the applications in the order of the document.
type Applied struct {
	Apps []App `json:"apps"`
}

// Replicas is the request PUT /v1/services/{id}/scale.
type Replicas struct {
	Replicas int `json:"replicas"`
}

// WhyRequest is the request POST /v1/why: where could a cluster place an instance that it does not
// have? The answer is an Explanation.
type WhyRequest struct {
	Instance InstanceID   `json:"instance"`
	Spec     Microservice `json:"spec"`
	Targets  []Target     `json:"targets,omitempty"`  // as an Assignment's
	Searched bool         `json:"searched,omitempty"` // as an Assignment's
}

// Plan is the answer to POST /v1/apps:plan: what applying the document would do if nothing else
// changed. It reserves nothing. It includes the answers of clusters.
type Plan struct {
	Apps     []AppPlan     `json:"apps"`
	Clusters []ClusterView `json:"clusters,omitempty"` // the considered clusters
	Revision Revision      `json:"revision"`           // on which the plan is based
}

type AppPlan struct {
	ID        AppID          `json:"id"`
	Action    string         `json:"action"`              // "create", "update" or "none"
	Revision  Revision       `json:"revision,omitempty"`  // its present one
	Changes   []FieldChange  `json:"changes,omitempty"`   // in the document's order
	Instances []InstancePlan `json:"instances,omitempty"` // that would be placed, replaced, stopped, or stay
	RollOuts  []RollOutPlan  `json:"rollouts,omitempty"`  // of the services whose instances would be replaced
	Schedules []NextRuns     `json:"schedules,omitempty"` // of the services that have one
	Scaling   []ScalingNow   `json:"scaling,omitempty"`   // of the services that scale before the change
}

// ScalingNow is what scaling does with a service in one of its clusters before a change.
type ScalingNow struct {
	Service ServiceID      `json:"service"`
	Cluster ClusterID      `json:"cluster"`
	Now     *ScaleStanding `json:"now,omitempty"` // nil: the cluster did not say
}

// RollOutPlan is how the running instances of a service would be replaced.
type RollOutPlan struct {
	Service ServiceID `json:"service"`
	Policy  string    `json:"policy"`
}

// NextRuns are the next times of a service's schedule; none if it is suspended.
type NextRuns struct {
	Service ServiceID   `json:"service"`
	Cron    string      `json:"cron"`
	Times   []time.Time `json:"times,omitempty"`
}

// FieldChange is one difference between the present and the planned SLA.
type FieldChange struct {
	Path string `json:"path"` // "front.demo/memory"; without a field: the service is added or removed
	Old  string `json:"old,omitempty"`
	New  string `json:"new,omitempty"`
}

type InstancePlan struct {
	ID      InstanceID `json:"id"`
	Action  string     `json:"action"` // "place", "replace", "stop", "stay" or "wait"
	Cluster ClusterID  `json:"cluster,omitempty"`
	Node    NodeID     `json:"node,omitempty"`  // empty unless the user may see nodes
	Score   float64    `json:"score,omitempty"` // of the cluster
	// After is the maximum time in seconds until the placement, if no place meets the instance's
	// links to other services now and one is searched for. 0: it is placed at once.
	After float64 `json:"after_seconds,omitempty"`
	// Headroom is what is left at its place for each requirement of the SLA: "memory 3.2 GiB",
	// "latency 12 ms of 20".
	Headroom []string `json:"headroom,omitempty"`
	// Preempts says that less urgent instances would be evicted. Preempted are those of them that
	// the user may see, and Others is the number of the rest.
	Preempts  bool         `json:"displaces,omitempty"`
	Preempted []InstanceID `json:"make_way,omitempty"`
	Others    int          `json:"others,omitempty"`
	// Why is why it would wait. It is about the nodes of Cluster, which was asked last, or about
	// clusters if Cluster is empty.
	Why *Explanation `json:"why,omitempty"`
}

// ClusterView is how recent a cluster's part of a plan is.
type ClusterView struct {
	Cluster ClusterID `json:"cluster"`
	Age     float64   `json:"age_seconds"`     // of its aggregate at the root
	Asked   bool      `json:"asked"`           // it answered with its own plan
	Error   string    `json:"error,omitempty"` // why it did not
}

// ClusterPlanRequest is the request POST /v1/plan: which nodes would a cluster choose for these
// instances, one after the other? The answer is a ClusterPlan.
type ClusterPlanRequest struct {
	Instances []WhyRequest `json:"instances"`
	// Gone are instances of the cluster that the change would remove. Their resources are free for
	// the others.
	Gone []InstanceID `json:"gone,omitempty"`
}

// ClusterPlan is the answer to ClusterPlanRequest, in the same order.
type ClusterPlan struct {
	Instances []InstancePlan `json:"instances"`
}

// Login signs a user in: POST /v1/auth/login.
type Login struct {
	User     string `json:"user"` // "acme/alice", or "admin" in the system tenant
	Password string `json:"password"`
}

// Redeem exchanges a one-use sign-in code for a password and a session: POST /v1/auth/redeem.
type Redeem struct {
	User     string `json:"user"`
	Code     string `json:"code"`
	Password string `json:"password"` // the new one
}

// Refresh is the request POST /v1/auth/refresh for a new session. A refresh token is valid once.
type Refresh struct {
	Refresh string `json:"refresh"`
}

// ChangePassword is the request POST /v1/auth/password. It ends all sessions and personal tokens of the user.
type ChangePassword struct {
	Old      string `json:"old" maxLength:"256"`
	Password string `json:"password" maxLength:"256" doc:"The new one, of 10 to 256 bytes."`
}

// Session is the answer to Login, Redeem and Refresh.
type Session struct {
	User    string    `json:"user"`
	Tenant  Tenant    `json:"tenant,omitempty"`
	Roles   []string  `json:"roles"`
	Access  string    `json:"access"` // bearer token
	Expires time.Time `json:"expires"`
	Refresh string    `json:"refresh,omitempty"`

	Replicas []string `json:"replicas,omitempty"` // https://host:port of all replicas of the root, at most 8
}

// TokenRequest is the request POST /v1/tokens for a join token, at the root (for a cluster, or for
// a node of a cluster) or at a cluster (for one of its nodes).
type TokenRequest struct {
	Kind    string    `json:"kind,omitempty"`    // "cluster" or "node"; a cluster accepts "node" only
	Cluster ClusterID `json:"cluster,omitempty"` // node: its cluster; cluster: the required name, if set
	Tenant  Tenant    `json:"tenant,omitempty"`  // cluster: its owner
	// Open says whether a cluster that joins may run the services of all tenants. Nil: only if the
	// system tenant owns it. Only the admins of the system set it for a tenant's cluster.
	Open *bool `json:"open,omitempty"`
	TTL  int   `json:"ttl_seconds,omitempty"` // 0: one hour
	Uses int   `json:"uses,omitempty"`        // 0: one
}

// RestoreState is the state of a root or a cluster that was restored from a snapshot. While Held, a root sends
// its clusters no assignments, and a cluster sends its nodes none; what runs goes on.
type RestoreState struct {
	Held     bool              `json:"held"`
	Taken    time.Time         `json:"taken,omitzero"`    // the snapshot
	Restored time.Time         `json:"restored,omitzero"` // when it was restored
	Unknown  []UnknownInstance `json:"unknown,omitempty"` // they stop when the restore is accepted
	Silent   []ClusterID       `json:"silent,omitempty"`  // clusters that have not reported yet

	// Of a cluster. It continues by itself when AwaitsRoot is false, and SilentNodes and Unknown are empty.
	AwaitsRoot  bool     `json:"awaits_root,omitempty"`  // the root has not sent what it wants
	SilentNodes []NodeID `json:"silent_nodes,omitempty"` // nodes that have not reported yet
}

// UnknownInstance is an instance without a record: at a root, one that a cluster reports; at a cluster, one that a node
// reports.
type UnknownInstance struct {
	Cluster  ClusterID  `json:"cluster"`
	Node     NodeID     `json:"node,omitempty"` // at a cluster: one of the nodes that have it
	Instance InstanceID `json:"instance"`
}

// Replica is one of the processes of a root or cluster that share a store, as the active one sees it.
type Replica struct {
	Name    string       `json:"name" doc:"Host and port of its URL."`
	URL     string       `json:"url"`
	Role    ReplicaRole  `json:"role,omitempty" enum:"active,standby" doc:"Missing: the replica is not alive."`
	State   ReplicaState `json:"state" enum:"alive,failed,left,unknown"`
	Since   time.Time    `json:"since,omitzero" doc:"Since when the active replica sees it in this state; missing: unknown."`
	Version string       `json:"version,omitempty"`
}

// ReplicaRole is what a replica does. The lease in the store decides it.
type ReplicaRole string

const (
	ReplicaActive  ReplicaRole = "active"
	ReplicaStandby ReplicaRole = "standby"
)

// ReplicaState is whether a replica answers the probes of the others.
type ReplicaState string

const (
	ReplicaAlive   ReplicaState = "alive"
	ReplicaFailed  ReplicaState = "failed"
	ReplicaLeft    ReplicaState = "left"    // it was stopped
	ReplicaUnknown ReplicaState = "unknown" // there is no gossip, or it was not heard of
)

// SigningKey is a key with which the root signs the tokens of users.
type SigningKey struct {
	ID       string    `json:"id"`
	Made     time.Time `json:"made"`
	Signs    time.Time `json:"signs"`             // from when on it signs; it verifies since Made
	Replaced time.Time `json:"replaced,omitzero"` // when the next key signs in its place
	Ends     time.Time `json:"ends,omitzero"`     // when the last token that it may have signed has ended, and it verifies no more
}

// The states of a rotation of the key of a cluster's certificate authority.
const (
	AuthorityRequested = "requested" // the new key has no certificate of the root yet
	AuthorityAnnounced = "announced" // it has one, and the external broker does not accept it yet
	AuthoritySigning   = "signing"   // it signs, and certificates of the earlier key are valid
	AuthorityRetired   = "retired"   // certificates of earlier keys are refused
)

// Authority is the certificate authority of a cluster and the rotation of its key.
type Authority struct {
	Generation uint64    `json:"generation" doc:"How many keys the authority had before the one that signs."`
	State      string    `json:"state,omitempty" enum:"requested,announced,signing,retired" doc:"Of the last rotation; empty: the key was never replaced."`
	Since      time.Time `json:"since,omitzero" doc:"When the last rotation began."`
	Ends       time.Time `json:"ends" doc:"When the authority's certificate expires, unless it is renewed before."`
	Waits      string    `json:"waits,omitempty" doc:"Why the new key does not sign yet."`
	// Behind are the nodes without a certificate of the key that signs, and after the earlier keys were retired, those whose
	// certificate does not say so.
	Behind []AuthorityBehind `json:"behind,omitempty" doc:"The nodes that have not renewed their certificate since. The cluster asks those that are connected, a few at a time."`
}

// AuthorityBehind is a node without a certificate of the newest generation.
type AuthorityBehind struct {
	Node       NodeID `json:"node"`
	Generation uint64 `json:"generation" doc:"Of the authority that has issued its certificate."`
	Error      string `json:"error,omitempty" doc:"Why its last renewal failed."`
}

// RotateAuthority is the request POST /v1/system/authority.
type RotateAuthority struct {
	Retire      bool     `json:"retire,omitempty" doc:"Retire the earlier keys. Without it: replace the key."`
	LeaveBehind []NodeID `json:"leave_behind,omitempty" maxItems:"10000" doc:"With retire: nodes that lose their access, if they have not renewed their certificate. They must be deleted and join again."`
}

// RootAuthority is the certificate authority of the root and the rotation of its key.
type RootAuthority struct {
	Generation uint64    `json:"generation" doc:"How many keys the authority had before the one that signs."`
	State      string    `json:"state,omitempty" enum:"signing,retired" doc:"Of the last rotation; empty: the key was never replaced."`
	Since      time.Time `json:"since,omitzero" doc:"When the last rotation began."`
	By         string    `json:"by,omitempty" doc:"Who began it."`
	Ends       time.Time `json:"ends" doc:"When the root's certificate expires."`
	Pin        string    `json:"pin" doc:"SHA-256 of the root's certificate, with which a client that does not know it signs in."`
	// Behind are the clusters that do not answer, or that or whose nodes have no certificate of the key that signs, and after the
	// earlier one was retired, those whose certificates do not say so.
	Behind []ClusterBehind `json:"behind,omitempty" doc:"The clusters that, or whose nodes, have not renewed their certificates since."`
}

// ClusterBehind is a cluster of which not all machines have a certificate of the root's newest key.
type ClusterBehind struct {
	Cluster    ClusterID `json:"cluster"`
	Generation uint64    `json:"generation" doc:"Of the root's key that has signed the certificate of the cluster."`
	Nodes      int       `json:"nodes,omitempty" doc:"How many of its nodes have not renewed their certificates, as the cluster says."`
	Names      []NodeID  `json:"names,omitempty" doc:"The first 10 of them."`
	Error      string    `json:"error,omitempty" doc:"Why the cluster does not answer."`
}

// RotateRootAuthority is the request POST /v1/system/authority at the root.
type RotateRootAuthority struct {
	Retire      bool        `json:"retire,omitempty" doc:"Retire the earlier key. Without it: replace the key."`
	LeaveBehind []ClusterID `json:"leave_behind,omitempty" maxItems:"10000" doc:"With retire: clusters that lose their access, or whose nodes do, if they have not renewed their certificates. These machines have to join again."`
}

// RotateKey is the request POST /v1/system/keys.
type RotateKey struct {
	RevokeTokens bool `json:"revoke_tokens,omitempty" doc:"Drop the earlier keys at once, after a theft: all sessions and personal tokens end."`
}

// SnapshotRequest is the request POST /v1/system/snapshot at the root or a cluster.
type SnapshotRequest struct {
	Recipients []string `json:"recipients,omitempty" maxItems:"8" doc:"X25519 recipients of age, age1…; none: those of the daemon's configuration."`
}

// SnapshotSchedule is what the root or a cluster says about its scheduled snapshots. The zero value: it takes none.
type SnapshotSchedule struct {
	Cron       string    `json:"cron,omitempty"`
	TimeZone   string    `json:"time_zone,omitempty"`
	To         string    `json:"to,omitempty" doc:"A directory of the daemon's machine, or s3://BUCKET/PREFIX/."`
	Recipients []string  `json:"recipients,omitempty"`
	Keep       int       `json:"keep,omitempty" doc:"How many are kept."`
	Next       time.Time `json:"next,omitzero" doc:"When the next one is due, or a failed one is repeated."`
	Failed     time.Time `json:"failed,omitzero" doc:"When the last run failed, if it did."`
	Error      string    `json:"error,omitempty" doc:"Why the last run failed; empty: it did not."`
	Overdue    bool      `json:"overdue,omitempty" doc:"The last good one is older than one and a half times the interval of the schedule."`

	Taken []SnapshotTaken `json:"taken" doc:"Those that are there, the newest first."`
}

// SnapshotTaken is a scheduled snapshot, which was written and read again.
type SnapshotTaken struct {
	Name   string    `json:"name"`
	Time   time.Time `json:"time"`
	Size   int64     `json:"size"`                                                  // bytes
	SHA256 string    `json:"sha256" doc:"Of the encrypted part, as in its header."` // hex
}

// OperatorRequest is the request POST /v1/operators at a cluster for a named token.
type OperatorRequest struct {
	Name  string   `json:"name"`            // lower-case letters, digits and inner hyphens
	Roles []string `json:"roles,omitempty"` // Admin or Infrastructure_Provider; none: the latter
	TTL   int      `json:"ttl_seconds"`     // a minute to 366 days
}

// OperatorToken is a named token for a cluster's own API. Token is set only in the answer that creates it.
type OperatorToken struct {
	Name    string    `json:"name"`
	Roles   []string  `json:"roles"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	By      string    `json:"by,omitempty"` // the user who created it
	Token   string    `json:"token,omitempty"`
}

// JoinToken is a join token. Token, Install and Command are set only in the answer that creates it.
type JoinToken struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	Cluster ClusterID `json:"cluster,omitempty"`
	Tenant  Tenant    `json:"tenant,omitempty"`
	Token   string    `json:"token,omitempty"`
	Uses    int       `json:"uses"` // left
	Expires time.Time `json:"expires"`
	// Install is set if the server has the programs for the machine that joins.
	Install *Installer `json:"install,omitempty"`
	// Command is the line to run on that machine: JoinCommand.
	Command string `json:"command,omitempty"`
}

// PathOf returns an id as one segment of a URL's path. It replaces each "/" and "#" by "~", which
// no id contains, so that proxies and routers do not interpret them.
func PathOf[ID ~string](id ID) string {
	return url.PathEscape(strings.NewReplacer("/", "~", "#", "~").Replace(string(id)))
}

// FromPath reverses PathOf for an application, a service or a tenant.
func FromPath(segment string) string { return strings.ReplaceAll(segment, "~", "/") }

// InstanceFromPath reverses PathOf for an instance, whose last separator is "#".
func InstanceFromPath(segment string) InstanceID {
	if i := strings.LastIndexByte(segment, '~'); i >= 0 && !strings.Contains(segment, "#") {
		segment = segment[:i] + "#" + segment[i+1:]
	}
	return InstanceID(FromPath(segment))
}

// The issuer of users' tokens, and the audience of tokens for the root. Clusters do not accept
// tokens of this audience.
const (
	TokenIssuer   = "treeline-root"
	TokenAudience = "treeline"
)

// ClusterAudience is the audience of tokens that the root delegates for a cluster.
func ClusterAudience(c ClusterID) string { return "treeline://cluster/" + string(c) }

// ClusterAccess is the answer to POST /v1/clusters/{id}/access.
type ClusterAccess struct {
	Cluster ClusterID `json:"cluster"`
	Token   string    `json:"token" doc:"Bearer token for the cluster's own API."`
	Expires time.Time `json:"expires"`
}

// Change is a change of an object of the root, for watches. Object is nil if the object was
// deleted.
type Change struct {
	Kind     string   `json:"kind"` // "app", "service", "instance", "cluster", "event"
	ID       string   `json:"id"`
	Tenant   Tenant   `json:"tenant,omitempty"`
	Revision Revision `json:"revision"`
	Object   any      `json:"object,omitempty"`
}
