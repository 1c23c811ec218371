package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// ListOptions filter a list. A zero field does not filter.
type ListOptions struct {
	Tenant  api.Tenant    // objects of this tenant and of those below it
	Under   string        // services and instances of this application or service id
	Cluster api.ClusterID // instances in this cluster
	Since   api.Revision  // events after this revision
	Limit   int           // objects per page; 0: the server's default. All pages are read in any case
}

func (o ListOptions) query() url.Values {
	q := url.Values{}
	set := func(key, v string) {
		if v != "" {
			q.Set(key, v)
		}
	}
	set("tenant", string(o.Tenant))
	set("under", o.Under)
	set("cluster", string(o.Cluster))
	if o.Since > 0 {
		q.Set("since", strconv.FormatUint(uint64(o.Since), 10))
	}
	if o.Limit > 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	return q
}

// List reads all pages of the list at path. rev is the revision of the first page: a watch
// since rev misses no change. On an error it returns no objects.
func List[T any](ctx context.Context, c *Client, path string, q url.Values) (all []T, rev api.Revision, err error) {
	if q == nil {
		q = url.Values{}
	}
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

// get decodes the object at path.
func get[T any](ctx context.Context, c *Client, path string) (o T, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodGet, Path: path}, &o)
	return o, err
}

// do sends a request and ignores the content of the answer.
func (c *Client) do(ctx context.Context, r Request) error {
	_, err := c.Do(ctx, r, nil)
	return err
}

// Redeem sets a password with a one-use code and signs in. ErrUnauthenticated: the code is
// unknown, used or expired.
func (c *Client) Redeem(ctx context.Context, r api.Redeem) (s api.Session, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/redeem", Body: r, Open: true}, &s)
	return s, err
}

// Login signs in with a password. ErrUnauthenticated: user or password is wrong.
func (c *Client) Login(ctx context.Context, l api.Login) (s api.Session, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/login", Body: l, Open: true}, &s)
	return s, err
}

// Refresh exchanges a refresh token, which is valid for one use, for a new session.
// ErrUnauthenticated: the token is used, revoked or expired.
func (c *Client) Refresh(ctx context.Context, refresh string) (s api.Session, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/refresh", Body: api.Refresh{Refresh: refresh}, Open: true}, &s)
	return s, err
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
func (c *Client) CreateUser(ctx context.Context, id string, roles ...string) (i Invitation, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/users", Body: map[string]any{"id": id, "roles": roles}}, &i)
	return i, err
}

// Invite creates a new code for a user. Earlier codes become invalid.
func (c *Client) Invite(ctx context.Context, id string) (i Invitation, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/users/" + api.PathOf(api.Tenant(id)) + "/invite"}, &i)
	return i, err
}

// ApplyOptions configure Apply and Plan.
type ApplyOptions struct {
	Tenant       api.Tenant   // owner of the applications; empty: the caller's tenant
	ContentType  string       // application/json (the default) or application/yaml
	IfMatch      api.Revision // Apply only: required revision of the application; 0: any
	MustNotExist bool         // Apply only: create, do not update
}

// Apply creates or updates the applications in an SLA of at most 1 MiB, and returns them.
// ErrInvalid: the SLA has errors; the *api.Problem lists each with its JSON pointer.
// ErrPrecondition: IfMatch or MustNotExist does not hold. Nothing changes on an error.
func (c *Client) Apply(ctx context.Context, doc []byte, o ApplyOptions) ([]api.App, error) {
	r := o.request(http.MethodPut, string(Apps), doc)
	if o.IfMatch > 0 {
		r.Header.Set("If-Match", etag(o.IfMatch))
	}
	if o.MustNotExist {
		r.Header.Set("If-None-Match", "*")
	}
	var out api.Applied
	_, err := c.Do(ctx, r, &out)
	return out.Apps, err
}

// Plan returns what Apply would change. It changes nothing.
func (c *Client) Plan(ctx context.Context, doc []byte, o ApplyOptions) (p api.Plan, err error) {
	_, err = c.Do(ctx, o.request(http.MethodPost, string(Apps)+":plan", doc), &p)
	return p, err
}

func (o ApplyOptions) request(method, path string, doc []byte) Request {
	r := Request{Method: method, Path: path, Body: doc, ContentType: o.ContentType, Header: http.Header{}, Query: url.Values{}}
	if r.ContentType == "" {
		r.ContentType = "application/json"
	}
	if o.Tenant != "" {
		r.Query.Set("tenant", string(o.Tenant))
	}
	return r
}

// etag returns the If-Match header of a revision; 0 matches any.
func etag(r api.Revision) string {
	if r == 0 {
		return "*"
	}
	return `"` + strconv.FormatUint(uint64(r), 10) + `"`
}

// Apps lists applications, and the revision to watch from.
func (c *Client) Apps(ctx context.Context, o ListOptions) ([]api.App, api.Revision, error) {
	return List[api.App](ctx, c, string(Apps), o.query())
}

// App returns an application.
func (c *Client) App(ctx context.Context, id api.AppID) (api.App, error) {
	return get[api.App](ctx, c, string(Apps)+"/"+api.PathOf(id))
}

// DeleteApp deletes an application if it is at revision at; 0 matches any. It returns the
// application as it is while its instances stop.
func (c *Client) DeleteApp(ctx context.Context, id api.AppID, at api.Revision) (app api.App, err error) {
	_, err = c.Do(ctx, Request{
		Method: http.MethodDelete, Path: string(Apps) + "/" + api.PathOf(id), Header: http.Header{"If-Match": {etag(at)}},
	}, &app)
	return app, err
}

// Services lists services, and the revision to watch from.
func (c *Client) Services(ctx context.Context, o ListOptions) ([]api.Service, api.Revision, error) {
	return List[api.Service](ctx, c, string(Services), o.query())
}

// Service returns a service.
func (c *Client) Service(ctx context.Context, id api.ServiceID) (api.Service, error) {
	return get[api.Service](ctx, c, string(Services)+"/"+api.PathOf(id))
}

// Scale sets the number of instances of a service if it is at revision at; 0 matches any.
func (c *Client) Scale(ctx context.Context, id api.ServiceID, replicas int, at api.Revision) (s api.Service, err error) {
	_, err = c.Do(ctx, Request{
		Method: http.MethodPut, Path: string(Services) + "/" + api.PathOf(id) + "/scale",
		Body: api.Replicas{Replicas: replicas}, Header: http.Header{"If-Match": {etag(at)}},
	}, &s)
	return s, err
}

// Instances lists instances, and the revision to watch from.
func (c *Client) Instances(ctx context.Context, o ListOptions) ([]api.Instance, api.Revision, error) {
	return List[api.Instance](ctx, c, string(Instances), o.query())
}

// Instance returns an instance.
func (c *Client) Instance(ctx context.Context, id api.InstanceID) (api.Instance, error) {
	return get[api.Instance](ctx, c, string(Instances)+"/"+api.PathOf(id))
}

// Why returns why an instance is where it is, or why it is not placed.
func (c *Client) Why(ctx context.Context, id api.InstanceID) (api.Why, error) {
	return get[api.Why](ctx, c, string(Instances)+"/"+api.PathOf(id)+"/why")
}

// Logs streams the output of an instance's workload: its last tail lines, or all that is
// kept if tail is negative, and with follow what the workload writes from then on. The
// caller closes the stream. The stream is renewed with new tokens; reading returns
// ErrUnauthenticated when there is none.
func (c *Client) Logs(ctx context.Context, id api.InstanceID, follow bool, tail int) (io.ReadCloser, error) {
	began := time.Now()
	resp, err := c.Raw(ctx, Request{
		Method: http.MethodGet, Path: string(Instances) + "/" + api.PathOf(id) + "/logs",
		Query: url.Values{"follow": {strconv.FormatBool(follow)}, "tail": {strconv.Itoa(max(tail, -1))}},
	})
	if err != nil {
		return nil, err
	}
	return c.renewed(ctx, began, resp), nil
}

// Clusters lists clusters, and the revision to watch from.
func (c *Client) Clusters(ctx context.Context, o ListOptions) ([]api.Cluster, api.Revision, error) {
	return List[api.Cluster](ctx, c, string(Clusters), o.query())
}

// Cluster returns a cluster.
func (c *Client) Cluster(ctx context.Context, id api.ClusterID) (api.Cluster, error) {
	return get[api.Cluster](ctx, c, string(Clusters)+"/"+api.PathOf(id))
}

// RemoveCluster removes a cluster for good if it is at revision at; 0 matches any. Its
// certificates become invalid and its instances are placed in other clusters.
func (c *Client) RemoveCluster(ctx context.Context, id api.ClusterID, at api.Revision) error {
	return c.do(ctx, Request{
		Method: http.MethodDelete, Path: string(Clusters) + "/" + api.PathOf(id), Header: http.Header{"If-Match": {etag(at)}},
	})
}

// Events lists events in the order of their revisions. instance, if not empty, selects the
// events of one instance. ErrGone: events after o.Since are no longer kept.
func (c *Client) Events(ctx context.Context, o ListOptions, instance api.InstanceID) ([]api.Event, api.Revision, error) {
	q := o.query()
	if instance != "" {
		q.Set("instance", string(instance))
	}
	return List[api.Event](ctx, c, string(Events), q)
}
