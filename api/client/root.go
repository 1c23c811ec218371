package client

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// ListOptions filter a list. A zero field does not filter.
type ListOptions struct {
	Tenant   api.Tenant     // objects of this tenant and of those below it
	Under    string         // services and instances of this application or service id
	Cluster  api.ClusterID  // instances in this cluster
	Instance api.InstanceID // events of this instance
	Since    api.Revision   // events after this revision
	Limit    int            // objects per page; 0: the server's default. All pages are read
}

func (o ListOptions) query() url.Values {
	q := url.Values{}
	for key, v := range map[string]string{"tenant": string(o.Tenant), "under": o.Under, "cluster": string(o.Cluster), "instance": string(o.Instance)} {
		if v != "" {
			q.Set(key, v)
		}
	}
	for key, n := range map[string]uint64{"since": uint64(o.Since), "limit": uint64(o.Limit)} {
		if n > 0 {
			q.Set(key, strconv.FormatUint(n, 10))
		}
	}
	return q
}

// List reads all pages of the list at path. rev is the revision of the first page: a watch since
// rev misses no change. On an error it returns no objects.
func List[T any](ctx context.Context, c *Client, path string, o ListOptions) (all []T, rev api.Revision, err error) {
	q := o.query()
	for first := true; ; first = false {
		var p api.Page[T]
		if _, err := c.Do(ctx, Request{Method: http.MethodGet, Path: path, Query: q}, &p); err != nil {
			return nil, 0, err
		}
		if first {
			rev = p.Revision
		}
		all = append(all, p.Items...)
		if p.Next == "" {
			return all, rev, nil
		}
		q.Set("cursor", p.Next)
	}
}

// Get returns the object at path.
func Get[T any](ctx context.Context, c *Client, path string) (T, error) {
	return send[T](ctx, c, Request{Method: http.MethodGet, Path: path})
}

// send sends a request and returns the object in the answer.
func send[T any](ctx context.Context, c *Client, r Request) (out T, err error) {
	_, err = c.Do(ctx, r, &out)
	return out, err
}

// session starts a session with a request that has no token.
func (c *Client) session(ctx context.Context, path string, body any) (api.Session, error) {
	return send[api.Session](ctx, c, Request{Method: http.MethodPost, Path: path, Body: body, Open: true})
}

// do sends a request and ignores the content of the answer.
func (c *Client) do(ctx context.Context, r Request) error {
	_, err := c.Do(ctx, r, nil)
	return err
}

// Redeem sets a password with a one-use code and signs in. ErrUnauthenticated: the code is
// unknown, used or expired.
func (c *Client) Redeem(ctx context.Context, r api.Redeem) (api.Session, error) {
	return c.session(ctx, "/v1/auth/redeem", r)
}

// Login signs in with a password. ErrUnauthenticated: user or password is wrong.
func (c *Client) Login(ctx context.Context, l api.Login) (api.Session, error) {
	return c.session(ctx, "/v1/auth/login", l)
}

// Refresh exchanges a refresh token, which is valid for one use, for a new session.
// ErrUnauthenticated: the token is used, revoked or expired.
func (c *Client) Refresh(ctx context.Context, refresh string) (api.Session, error) {
	return c.session(ctx, "/v1/auth/refresh", api.Refresh{Refresh: refresh})
}

// Logout revokes a refresh token and the access tokens of its session.
func (c *Client) Logout(ctx context.Context, refresh string) error {
	return c.do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/logout", Body: api.Refresh{Refresh: refresh}, Open: true})
}

// CreateTenant creates a tenant. ErrConflict: it exists.
func (c *Client) CreateTenant(ctx context.Context, t api.Tenant, title string) error {
	return c.do(ctx, Request{Method: http.MethodPost, Path: "/v1/tenants", Body: map[string]any{"path": t, "title": title}})
}

// Invitation is a one-use code with which a user sets a password (see Redeem).
type Invitation struct {
	User    string    `json:"user"`
	Code    string    `json:"code"`
	Expires time.Time `json:"expires"`
}

// CreateUser creates the user "<tenant>/<name>" with roles in that tenant, and a code to set
// a password with. ErrConflict: the user exists.
func (c *Client) CreateUser(ctx context.Context, id string, roles ...string) (Invitation, error) {
	return send[Invitation](ctx, c, Request{Method: http.MethodPost, Path: "/v1/users", Body: map[string]any{"id": id, "roles": roles}})
}

// Invite creates a new code for a user. Earlier codes become invalid.
func (c *Client) Invite(ctx context.Context, id string) (Invitation, error) {
	return send[Invitation](ctx, c, Request{Method: http.MethodPost, Path: "/v1/users/" + api.PathOf(id) + "/invite"})
}

type ApplyOptions struct {
	Tenant       api.Tenant   // owner of the applications; empty: the caller's tenant
	ContentType  string       // application/json (the default) or application/yaml
	IfMatch      api.Revision // Apply only: required revision of the application; 0: any
	MustNotExist bool         // Apply only: create, do not update

	// Application is the "name.namespace" that gets the services of a document without applications,
	// {"microservices": […]}. Empty: the document has applications.
	Application string
}

// Apply creates or updates the applications in an SLA of at most 1 MiB, and returns them.
// ErrInvalid: the SLA has faults; the *api.Problem lists each with its JSON pointer.
// ErrPrecondition: IfMatch or MustNotExist is not met. If an SLA of several applications fails with
// an error other than a fault, the detail lists applications that were already applied.
func (c *Client) Apply(ctx context.Context, doc []byte, o ApplyOptions) ([]api.App, error) {
	r := o.request(http.MethodPut, string(Apps), doc)
	if o.IfMatch > 0 {
		r.Header = ifMatch(o.IfMatch)
	}
	if o.MustNotExist {
		r.Header.Set("If-None-Match", "*")
	}
	out, err := send[api.Applied](ctx, c, r)
	return out.Apps, err
}

// Plan returns what Apply would change. It changes nothing.
func (c *Client) Plan(ctx context.Context, doc []byte, o ApplyOptions) (api.Plan, error) {
	return send[api.Plan](ctx, c, o.request(http.MethodPost, string(Apps)+":plan", doc))
}

func (o ApplyOptions) request(method, path string, doc []byte) Request {
	query := ListOptions{Tenant: o.Tenant}.query()
	if o.Application != "" {
		query.Set("application", o.Application)
	}
	return Request{
		Method: method, Path: path, Query: query, Header: http.Header{},
		Body: doc, ContentType: cmp.Or(o.ContentType, "application/json"),
	}
}

func ifMatch(at api.Revision) http.Header {
	if at == 0 {
		return http.Header{"If-Match": {"*"}}
	}
	return http.Header{"If-Match": {`"` + strconv.FormatUint(uint64(at), 10) + `"`}}
}

func pathOf[ID ~string](k Kind, id ID) string { return string(k) + "/" + api.PathOf(id) }

// Apps lists applications, and the revision to watch from.
func (c *Client) Apps(ctx context.Context, o ListOptions) ([]api.App, api.Revision, error) {
	return List[api.App](ctx, c, string(Apps), o)
}

func (c *Client) App(ctx context.Context, id api.AppID) (api.App, error) {
	return Get[api.App](ctx, c, pathOf(Apps, id))
}

// SLA returns the SLA document of an application as JSON, for an editor and for Apply.
func (c *Client) SLA(ctx context.Context, id api.AppID) ([]byte, error) {
	return send[json.RawMessage](ctx, c, Request{Method: http.MethodGet, Path: pathOf(Apps, id) + "/sla"})
}

// DeleteApp deletes an application if it is at revision at; 0 matches any. It returns the
// application, which remains until its instances have stopped.
func (c *Client) DeleteApp(ctx context.Context, id api.AppID, at api.Revision) (api.App, error) {
	return send[api.App](ctx, c, Request{Method: http.MethodDelete, Path: pathOf(Apps, id), Header: ifMatch(at)})
}

// Services lists services, and the revision to watch from.
func (c *Client) Services(ctx context.Context, o ListOptions) ([]api.Service, api.Revision, error) {
	return List[api.Service](ctx, c, string(Services), o)
}

func (c *Client) Service(ctx context.Context, id api.ServiceID) (api.Service, error) {
	return Get[api.Service](ctx, c, pathOf(Services, id))
}

// Scale sets the number of instances of a service if it is at revision at; 0 matches any.
func (c *Client) Scale(ctx context.Context, id api.ServiceID, replicas int, at api.Revision) (api.Service, error) {
	return send[api.Service](ctx, c, Request{
		Method: http.MethodPut, Path: pathOf(Services, id) + "/scale", Body: api.Replicas{Replicas: replicas}, Header: ifMatch(at),
	})
}

// Instances lists instances, and the revision to watch from.
func (c *Client) Instances(ctx context.Context, o ListOptions) ([]api.Instance, api.Revision, error) {
	return List[api.Instance](ctx, c, string(Instances), o)
}

func (c *Client) Instance(ctx context.Context, id api.InstanceID) (api.Instance, error) {
	return Get[api.Instance](ctx, c, pathOf(Instances, id))
}

// Move asks the cluster of an instance to move it to the node to, or to any other node if to is empty. It returns before the
// instance has moved. It fails with ErrConflict if no node fits, it moves already or it does not run.
func (c *Client) Move(ctx context.Context, id api.InstanceID, to api.NodeID) (api.Instance, error) {
	return send[api.Instance](ctx, c, Request{Method: http.MethodPost, Path: pathOf(Instances, id) + "/move", Body: api.MoveRequest{To: to}})
}

// Why returns why an instance is where it is, or why it is not placed.
func (c *Client) Why(ctx context.Context, id api.InstanceID) (api.Why, error) {
	return Get[api.Why](ctx, c, pathOf(Instances, id)+"/why")
}

// Logs streams the output of an instance's workload: the last tail lines, or all that are kept if
// tail is negative. With follow, it continues with new output. The caller closes the stream. The
// stream is renewed with new tokens; Read returns ErrUnauthenticated if there is none.
func (c *Client) Logs(ctx context.Context, id api.InstanceID, follow bool, tail int) (io.ReadCloser, error) {
	return c.ReadLogs(ctx, id, LogOptions{Follow: follow, Tail: tail})
}

// LogOptions select what to read of a log.
type LogOptions struct {
	Follow     bool          // continue with new output
	Tail       int           // the last lines; negative: all that are kept
	Since      time.Duration // only lines of this time until now, to the second; 0: all
	Timestamps bool          // begin each line with its time, to the second, in UTC
	Previous   bool          // of the attempt before the last restart; ErrNotFound if there is none
}

// ReadLogs is Logs with further options.
func (c *Client) ReadLogs(ctx context.Context, id api.InstanceID, o LogOptions) (io.ReadCloser, error) {
	q := url.Values{"follow": {strconv.FormatBool(o.Follow)}, "tail": {strconv.Itoa(max(o.Tail, -1))}}
	if o.Since > 0 {
		q.Set("since", strconv.Itoa(int((o.Since+time.Second-1)/time.Second)))
	}
	if o.Timestamps {
		q.Set("timestamps", "true")
	}
	if o.Previous {
		q.Set("previous", "true")
	}
	return c.stream(ctx, pathOf(Instances, id)+"/logs", q)
}

// Volumes lists local volumes, and the revision of the list.
func (c *Client) Volumes(ctx context.Context, o ListOptions) ([]api.VolumeStatus, api.Revision, error) {
	return List[api.VolumeStatus](ctx, c, string(Volumes), o)
}

// Volume returns a local volume.
func (c *Client) Volume(ctx context.Context, id api.VolumeID) (api.VolumeStatus, error) {
	return Get[api.VolumeStatus](ctx, c, pathOf(Volumes, id))
}

// DeleteVolume deletes a local volume with its data if it is at revision at; 0 matches any. ErrConflict:
// an instance has it. ErrUnavailable: its node is not connected.
func (c *Client) DeleteVolume(ctx context.Context, id api.VolumeID, at api.Revision) error {
	return c.do(ctx, Request{Method: http.MethodDelete, Path: pathOf(Volumes, id), Header: ifMatch(at)})
}

// TakeSnapshot has the driver of a CSI volume take a snapshot, which is not ready at first. ErrConflict: one of
// the name is ready.
func (c *Client) TakeSnapshot(ctx context.Context, id api.VolumeID, name string) (api.VolumeSnapshot, error) {
	return send[api.VolumeSnapshot](ctx, c, Request{Method: http.MethodPost, Path: pathOf(Volumes, id) + "/snapshots", Body: api.NewSnapshot{Name: name}})
}

// Snapshots lists snapshots of CSI volumes, and the revision of the list.
func (c *Client) Snapshots(ctx context.Context, o ListOptions) ([]api.VolumeSnapshot, api.Revision, error) {
	return List[api.VolumeSnapshot](ctx, c, string(Snapshots), o)
}

// DeleteSnapshot deletes a snapshot if it is at revision at; 0 matches any. ErrConflict: an SLA names it.
func (c *Client) DeleteSnapshot(ctx context.Context, id api.SnapshotID, at api.Revision) error {
	return c.do(ctx, Request{Method: http.MethodDelete, Path: pathOf(Snapshots, id), Header: ifMatch(at)})
}

// Replicas lists the replicas of the root, or of the cluster whose own API this is. The list is empty if it has none.
func (c *Client) Replicas(ctx context.Context) ([]api.Replica, error) {
	var page api.Page[api.Replica]
	_, err := c.Do(ctx, Request{Method: http.MethodGet, Path: "/v1/replicas"}, &page)
	return page.Items, err
}

// Clusters lists clusters, and the revision to watch from.
func (c *Client) Clusters(ctx context.Context, o ListOptions) ([]api.Cluster, api.Revision, error) {
	return List[api.Cluster](ctx, c, string(Clusters), o)
}

func (c *Client) Cluster(ctx context.Context, id api.ClusterID) (api.Cluster, error) {
	return Get[api.Cluster](ctx, c, pathOf(Clusters, id))
}

// RemoveCluster removes a cluster if it is at revision at; 0 matches any. It revokes the cluster's
// certificates. The instances are placed in other clusters.
func (c *Client) RemoveCluster(ctx context.Context, id api.ClusterID, at api.Revision) error {
	return c.do(ctx, Request{Method: http.MethodDelete, Path: pathOf(Clusters, id), Header: ifMatch(at)})
}

// Events lists events in the order of their revisions.
func (c *Client) Events(ctx context.Context, o ListOptions) ([]api.Event, api.Revision, error) {
	return List[api.Event](ctx, c, string(Events), o)
}
