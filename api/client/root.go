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

// ListOptions narrow a list.
type ListOptions struct {
	Tenant  api.Tenant
	Under   string // an application's or a service's id
	Cluster api.ClusterID
	Since   api.Revision // events: after this one
	Limit   int          // of a page; all pages are read
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

// List reads all pages of a list. The revision is the first page's: a watch
// from there misses nothing.
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

func get[T any](ctx context.Context, c *Client, path string) (o T, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodGet, Path: path}, &o)
	return o, err
}

// Redeem turns a one-use code into a password and a session.
func (c *Client) Redeem(ctx context.Context, r api.Redeem) (s api.Session, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/redeem", Body: r, Open: true}, &s)
	return s, err
}

// Login signs in with a password.
func (c *Client) Login(ctx context.Context, l api.Login) (s api.Session, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/login", Body: l, Open: true}, &s)
	return s, err
}

// Refresh exchanges a refresh token, which counts once.
func (c *Client) Refresh(ctx context.Context, refresh string) (s api.Session, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/refresh", Body: api.Refresh{Refresh: refresh}, Open: true}, &s)
	return s, err
}

// Logout ends the session of the refresh token.
func (c *Client) Logout(ctx context.Context, refresh string) error {
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/auth/logout", Body: api.Refresh{Refresh: refresh}, Open: true}, nil)
	return err
}

// CreateTenant makes a tenant; one that exists is ErrConflict.
func (c *Client) CreateTenant(ctx context.Context, t api.Tenant, title string) error {
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/tenants", Body: map[string]any{"path": t, "title": title}}, nil)
	return err
}

// Invitation is a user's one-use code.
type Invitation struct {
	User    string    `json:"user"`
	Code    string    `json:"code"`
	Expires time.Time `json:"expires"`
}

// CreateUser makes a user, "<tenant>/<name>", and the code to set a password with.
func (c *Client) CreateUser(ctx context.Context, id string, roles ...string) (i Invitation, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/users", Body: map[string]any{"id": id, "roles": roles}}, &i)
	return i, err
}

// Invite creates a new sign-in code for a user. Earlier codes become invalid.
func (c *Client) Invite(ctx context.Context, id string) (i Invitation, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/users/" + api.PathOf(api.Tenant(id)) + "/invite"}, &i)
	return i, err
}

// ApplyOptions say how an SLA is applied.
type ApplyOptions struct {
	Tenant       api.Tenant // empty: the asker's
	ContentType  string     // empty: application/json
	IfMatch      api.Revision
	MustNotExist bool
}

// Apply makes the applications of the document what it says.
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

// Plan says what Apply would do, and does nothing.
func (c *Client) Plan(ctx context.Context, doc []byte, o ApplyOptions) (p api.Plan, err error) {
	_, err = c.Do(ctx, o.request(http.MethodPost, string(Apps)+":plan", doc), &p)
	return p, err
}

// request bears a document, for the tenant that owns its applications.
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

// etag is the If-Match of a revision; 0 is any.
func etag(r api.Revision) string {
	if r == 0 {
		return "*"
	}
	return `"` + strconv.FormatUint(uint64(r), 10) + `"`
}

// Apps lists applications.
func (c *Client) Apps(ctx context.Context, o ListOptions) ([]api.App, api.Revision, error) {
	return List[api.App](ctx, c, string(Apps), o.query())
}

// App is one application.
func (c *Client) App(ctx context.Context, id api.AppID) (api.App, error) {
	return get[api.App](ctx, c, string(Apps)+"/"+api.PathOf(id))
}

// DeleteApp withdraws an application, if it is at the revision; 0 is any.
func (c *Client) DeleteApp(ctx context.Context, id api.AppID, at api.Revision) (app api.App, err error) {
	_, err = c.Do(ctx, Request{
		Method: http.MethodDelete, Path: string(Apps) + "/" + api.PathOf(id), Header: http.Header{"If-Match": {etag(at)}},
	}, &app)
	return app, err
}

// Services lists services.
func (c *Client) Services(ctx context.Context, o ListOptions) ([]api.Service, api.Revision, error) {
	return List[api.Service](ctx, c, string(Services), o.query())
}

// Service is one service.
func (c *Client) Service(ctx context.Context, id api.ServiceID) (api.Service, error) {
	return get[api.Service](ctx, c, string(Services)+"/"+api.PathOf(id))
}

// Scale sets how many instances the service should have, if it is at the
// revision; 0 is any.
func (c *Client) Scale(ctx context.Context, id api.ServiceID, replicas int, at api.Revision) (s api.Service, err error) {
	_, err = c.Do(ctx, Request{
		Method: http.MethodPut, Path: string(Services) + "/" + api.PathOf(id) + "/scale",
		Body: api.Replicas{Replicas: replicas}, Header: http.Header{"If-Match": {etag(at)}},
	}, &s)
	return s, err
}

// Instances lists instances.
func (c *Client) Instances(ctx context.Context, o ListOptions) ([]api.Instance, api.Revision, error) {
	return List[api.Instance](ctx, c, string(Instances), o.query())
}

// Instance is one instance.
func (c *Client) Instance(ctx context.Context, id api.InstanceID) (api.Instance, error) {
	return get[api.Instance](ctx, c, string(Instances)+"/"+api.PathOf(id))
}

// Why explains an instance.
func (c *Client) Why(ctx context.Context, id api.InstanceID) (api.Why, error) {
	return get[api.Why](ctx, c, string(Instances)+"/"+api.PathOf(id)+"/why")
}

// Logs streams what the instance's workload writes: tail lines from the end, all
// if it is less than 0, and what follows. The caller closes it.
func (c *Client) Logs(ctx context.Context, id api.InstanceID, follow bool, tail int) (io.ReadCloser, error) {
	began := time.Now()
	resp, err := c.send(ctx, Request{
		Method: http.MethodGet, Path: string(Instances) + "/" + api.PathOf(id) + "/logs",
		Query: url.Values{"follow": {strconv.FormatBool(follow)}, "tail": {strconv.Itoa(max(tail, -1))}},
	})
	if err != nil {
		return nil, err
	}
	return c.renewed(ctx, began, resp), nil
}

// Clusters lists clusters.
func (c *Client) Clusters(ctx context.Context, o ListOptions) ([]api.Cluster, api.Revision, error) {
	return List[api.Cluster](ctx, c, string(Clusters), o.query())
}

// Cluster is one cluster.
func (c *Client) Cluster(ctx context.Context, id api.ClusterID) (api.Cluster, error) {
	return get[api.Cluster](ctx, c, string(Clusters)+"/"+api.PathOf(id))
}

// ForgetCluster removes a cluster for good, if it is at the revision; 0 is any.
func (c *Client) ForgetCluster(ctx context.Context, id api.ClusterID, at api.Revision) error {
	_, err := c.Do(ctx, Request{
		Method: http.MethodDelete, Path: string(Clusters) + "/" + api.PathOf(id), Header: http.Header{"If-Match": {etag(at)}},
	}, nil)
	return err
}

// Nodes lists the nodes of a cluster, which the root asks for them.
func (c *Client) Nodes(ctx context.Context, id api.ClusterID) ([]api.Node, error) {
	return c.NodesOf(id).List(ctx)
}

// Events lists events, the oldest first.
func (c *Client) Events(ctx context.Context, o ListOptions, instance api.InstanceID) ([]api.Event, api.Revision, error) {
	q := o.query()
	if instance != "" {
		q.Set("instance", string(instance))
	}
	return List[api.Event](ctx, c, string(Events), q)
}

// CreateToken makes a join token for a cluster, or for a node of a cluster.
func (c *Client) CreateToken(ctx context.Context, r api.TokenRequest) (t api.JoinToken, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: "/v1/tokens", Body: r}, &t)
	return t, err
}
