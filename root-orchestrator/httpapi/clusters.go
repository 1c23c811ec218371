package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/jsonsize"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

func (a *API) registerClusters() {
	clusters := rest.Tag("clusters")
	handle(a, a.watchable(clusters.Get("/v1/clusters", "List clusters"), "cluster", rights.ClustersRead), rights.ClustersRead, a.listClusters)
	handle(a, clusters.Get("/v1/clusters/{id}", "Get cluster", 404), rights.ClustersRead, a.getCluster)
	handle(a, clusters.Put("/v1/clusters/{id}/grant", "Set what a cluster is granted", 404, 412).Named("setGrant").
		About("Sets whose services the cluster may run, and caps its capacity. Instances of tenants that it no longer admits are "+
			"removed from it at once and placed elsewhere. Only the installation's admins open a cluster to all tenants and change its caps; "+
			"its owner may name tenants that the owner manages, and remove any."), rights.ClustersWrite, a.setGrant)
	act(a, clusters.Delete("/v1/clusters/{id}", "Remove cluster", 404, 412, 428).Named("forgetCluster").
		About("Refuses the cluster's certificates from now on and places its instances elsewhere, exclusive ones too: "+
			"make sure that it has stopped them."), rights.ClustersWrite, a.removeCluster)
	handle(a, clusters.Post("/v1/clusters/{id}/access", "Exchange token for a cluster", 404).Named("exchangeToken").
		About("Returns a token for the cluster's own API, which accepts neither access tokens nor personal tokens of the root. "+
			"It has the user's rights, is valid at this cluster only, and expires after a few minutes, at the latest with the token of the request."),
		rights.ClustersRead, a.exchange)

	forwarded := []int{404, 503, 504}
	answer(a, clusters.Get("/v1/clusters/{id}/nodes", "List nodes", forwarded...).
		About("The root passes the request on to the cluster, which checks the user's rights again."),
		rights.NodesRead, func(ctx context.Context, p rights.Principal, in *ClusterInput) (out api.Page[api.Node], err error) {
			return out, a.call(ctx, p, rights.NodesRead, in.ID, http.MethodGet, "/v1/nodes", nil, &out)
		})
	answer(a, clusters.Get("/v1/clusters/{id}/events", "List records of a cluster", forwarded...).Named("listClusterEvents").
		About("What users did through the cluster's own port. The root passes the request on to the cluster, which checks the user's rights again."),
		rights.NodesRead, func(ctx context.Context, p rights.Principal, in *ClusterInput) (out api.Page[api.Event], err error) {
			if err := a.call(ctx, p, rights.NodesRead, in.ID, http.MethodGet, "/v1/events", nil, &out); err != nil {
				return out, err
			}
			for i := range out.Items { // its records are about itself, whatever it says
				out.Items[i].Tier, out.Items[i].Cluster = "cluster "+string(in.ID), in.ID
			}
			return out, nil
		})
	answer(a, clusters.Get("/v1/clusters/{id}/instances", "List instances of a cluster", forwarded...).Named("listClusterInstances").
		About("What runs on the cluster's nodes, of all tenants. The root passes the request on to the cluster, which checks the user's rights again."),
		rights.NodesRead, func(ctx context.Context, p rights.Principal, in *ClusterInput) (out api.Page[api.Instance], err error) {
			return out, a.call(ctx, p, rights.NodesRead, in.ID, http.MethodGet, "/v1/instances", nil, &out)
		})
	a.registerUsage(clusters)
	answer(a, clusters.Get("/v1/clusters/{id}/nodes/{node}", "Get node", forwarded...), rights.NodesRead, onNode[api.Node](a, http.MethodGet, ""))
	for _, verb := range []string{"cordon", "uncordon", "drain", "force-drain", "purge"} {
		op := clusters.Post("/v1/clusters/{id}/nodes/{node}/"+verb, "Have the cluster "+verb+" a node", forwarded...)
		answer(a, op.Named(strings.ReplaceAll(verb, "-", "")+"Node"), rights.NodesWrite, onNode[api.Node](a, http.MethodPost, "/"+verb))
	}
	answer(a, clusters.Put("/v1/clusters/{id}/nodes/{node}/caps", "Limit what a node counts for", forwarded...).Named("capNode").
		About("Caps the capacity that the node reports. Replaces the caps of an earlier request; 0 is no limit. The caps of the cluster's configuration apply as well."),
		rights.NodesWrite, func(ctx context.Context, p rights.Principal, in *capIn) (out api.Node, err error) {
			return out, a.callNode(ctx, p, rights.NodesWrite, http.MethodPut, in.NodeInput, "/caps", in.Body, &out)
		})
	act(a, clusters.Delete("/v1/clusters/{id}/nodes/{node}", "Remove node", 404, 409, 503, 504).Named("forgetNode"),
		rights.NodesWrite, func(ctx context.Context, p rights.Principal, in *NodeInput) error {
			return a.callNode(ctx, p, rights.NodesWrite, http.MethodDelete, *in, "", nil, nil)
		})
}

// The inputs that name a cluster.
type (
	ClusterInput struct {
		ID api.ClusterID `path:"id" doc:"The cluster."`
	}
	NodeInput struct {
		ID   api.ClusterID `path:"id" doc:"The cluster."`
		Node string        `path:"node" doc:"The node."`
	}
	capIn struct {
		NodeInput
		Body api.Caps
	}
	grantIn struct {
		ID      api.ClusterID `path:"id" doc:"The cluster."`
		IfMatch string        `header:"If-Match" doc:"The revision that is changed; without it, any."`
		Body    api.Grant
	}
)

func (a *API) listClusters(ctx context.Context, p rights.Principal, in *ListInput) (*listOut[api.Cluster], error) {
	return list(ctx, a, p, in, listing[api.Cluster]{
		path: "/v1/clusters", action: rights.ClustersRead, unfiltered: true,
		all:    func(api.Tenant) []api.Cluster { return a.core.Clusters() },
		tenant: func(c api.Cluster) api.Tenant { return c.Tenant },
		id:     func(c api.Cluster) string { return string(c.ID) },
	})
}

// cluster returns a cluster on which the principal may do the action. A cluster that the principal
// must not see is ErrNotFound, like one that does not exist.
func (a *API) cluster(ctx context.Context, p rights.Principal, action rights.Action, id api.ClusterID) (api.Cluster, error) {
	var c api.Cluster
	var ok bool
	if err := a.owner.Read(ctx, func() { c, ok = a.core.Cluster(id) }); err != nil {
		return c, err
	}
	if !ok || !p.Sees(c.Tenant) {
		return c, missing("cluster", id)
	}
	return c, rights.Allowed(p, action, c.Tenant)
}

func (a *API) getCluster(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.Cluster], error) {
	c, err := a.cluster(ctx, p, rights.ClustersRead, api.ClusterID(in.ID))
	return object(c, c.Revision, in.IfNoneMatch), err
}

func (a *API) setGrant(ctx context.Context, p rights.Principal, in *grantIn) (*objectOut[api.Cluster], error) {
	c, err := a.cluster(ctx, p, rights.ClustersWrite, in.ID)
	if err != nil {
		return nil, err
	}
	rev, err := ifMatch(in.IfMatch, false)
	if err != nil {
		return nil, err
	}
	if err := a.mayGrant(p, c.Grant, in.Body); err != nil {
		return nil, err
	}
	if rev == 0 {
		rev = c.Revision // fail if the cluster changes after the check
	}
	err = a.owner.Do(ctx, root.SetGrant{ID: in.ID, Grant: in.Body, IfMatch: rev, By: p.User}, func() { c, _ = a.core.Cluster(in.ID) })
	return object(c, c.Revision, ""), err
}

// mayGrant returns an error if p may not change a grant from was to is. So that no operator can
// attract the services of others, only admins of the system open a cluster to all tenants or change
// its caps, and only those who manage a tenant add it.
func (a *API) mayGrant(p rights.Principal, was, is api.Grant) error {
	if is.Open && !was.Open || !reflect.DeepEqual(is.Caps, was.Caps) {
		if err := rights.Allowed(p, rights.SystemWrite, rights.System); err != nil {
			return fmt.Errorf("open a cluster to all tenants, or change its caps: %w", err)
		}
	}
	for _, t := range is.Tenants {
		if slices.Contains(was.Tenants, t) {
			continue
		}
		if err := rights.Allowed(p, rights.ClustersWrite, t); err != nil {
			return fmt.Errorf("open a cluster to tenant %s: %w", t, err)
		}
		if _, err := a.opt.Accounts.Tenant(t); err != nil {
			return err
		}
	}
	return nil
}

func (a *API) removeCluster(ctx context.Context, p rights.Principal, in *ChangeInput) error {
	id := api.ClusterID(in.ID)
	c, err := a.cluster(ctx, p, rights.ClustersWrite, id)
	if err != nil {
		return err
	}
	if err := mustMatch(in.IfMatch, "cluster "+string(id), c.Revision); err != nil {
		return err
	}
	// Revoke the certificates first, so that the cluster cannot report before its removal.
	if err := a.opt.Clusters.Revoke(ctx, id); err != nil {
		return err
	}
	return a.owner.Do(ctx, root.RemoveCluster{ID: id}, nil)
}

type accessOut struct {
	CacheControl string `header:"Cache-Control"`
	Body         api.ClusterAccess
}

func (a *API) exchange(ctx context.Context, p rights.Principal, in *ClusterInput) (*accessOut, error) {
	c, err := a.cluster(ctx, p, rights.ClustersRead, in.ID)
	if err != nil {
		return nil, err
	}
	text, expires, err := a.opt.Accounts.Exchange(authenticated(ctx), api.ClusterAudience(c.ID))
	return &accessOut{CacheControl: "no-store", Body: api.ClusterAccess{Cluster: c.ID, Token: text, Expires: expires}}, err
}

// onNode returns a handler that forwards a request about a node, without a body, to the node's
// cluster.
func onNode[T any](a *API, method, verb string) func(context.Context, rights.Principal, *NodeInput) (T, error) {
	action := rights.NodesWrite
	if method == http.MethodGet {
		action = rights.NodesRead
	}
	return func(ctx context.Context, p rights.Principal, in *NodeInput) (out T, err error) {
		return out, a.callNode(ctx, p, action, method, *in, verb, nil, &out)
	}
}

func (a *API) callNode(ctx context.Context, p rights.Principal, action rights.Action, method string, in NodeInput, verb string, body, out any) error {
	if !api.ValidMachineName(in.Node) {
		return missing("node", in.Node) // the name is part of the path at the cluster
	}
	return a.call(ctx, p, action, in.ID, method, "/v1/nodes/"+in.Node+verb, body, out)
}

// callWait limits the time of a request to a cluster.
const callWait = 20 * time.Second

// maxCallAnswer limits a cluster's answer. An object in it takes up to 1 KiB of memory when
// decoded.
var maxCallAnswer = jsonsize.Limit{Bytes: 16 << 20, Objects: answerStep * answerShare / 2, Values: 1 << 20}

// answerStep is the number of objects in an answer that take one place.
const answerStep, answerShare = 1024, 256

var answerObjects = fairshare.Declare(fairshare.Bound{
	Resource: "objects in clusters' answers, of requests under way", Total: 1024, Unit: "× 1024", Share: []int{answerShare}, Per: "tenant",
	Beyond: "429; 503 for one answer of more than 131,072 objects, 1,048,576 values or 16 MiB",
	Attack: "TestAnswersOfOneTenantsClusterLeaveRoomForOthers",
})

// call sends a request on behalf of the user to the cluster's API. It checks the user's right to
// the action; the cluster checks it again.
func (a *API) call(ctx context.Context, p rights.Principal, action rights.Action, id api.ClusterID, method, path string, body, out any) error {
	if _, err := a.cluster(ctx, p, action, id); err != nil {
		return err
	}
	return a.ask(ctx, id, method, path, body, out)
}

// ask is call without the check of the user's right, for callers that have checked it.
func (a *API) ask(request context.Context, id api.ClusterID, method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(request, callWait)
	defer cancel()
	r := wire.StreamRequest{Kind: "api", Method: method, Path: path}
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode a request to cluster %s: %w", id, err)
		}
		r.Body = b
	}
	stream, err := a.dial(ctx, id, r)
	if err != nil {
		return err
	}
	defer stream.Close()
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(stream, maxCallAnswer.Bytes+64<<10)), &http.Request{Method: method})
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("cluster %s did not answer within %s: %w", id, callWait, api.ErrTimeout)
		}
		return fmt.Errorf("read the answer of cluster %s: %w: %w", id, err, api.ErrUnavailable)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return clusterProblem(id, resp)
	}
	if out == nil {
		return nil
	}
	text, err := maxCallAnswer.Read(resp.Body)
	if err == nil {
		if err := a.holdAnswer(request, text); err != nil {
			return err
		}
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		// Do not wrap the cause: its kind, for example ErrTooLarge, is about the cluster's answer,
		// not the request.
		return fmt.Errorf("read the answer of cluster %s: %s: %w", id, err.Error(), api.ErrUnavailable)
	}
	return nil
}

// holdAnswer reserves places for the objects of an answer until the request ends.
func (a *API) holdAnswer(request context.Context, text []byte) error {
	objects, _ := jsonsize.Count(text)
	var places []*fairshare.Place
	release := func() {
		for _, p := range places {
			p.Release()
		}
	}
	for range 1 + objects/answerStep {
		place, err := a.decoded.Take(a.opt.Now(), apishare.Path(principal(request))[:1], nil)
		if err != nil {
			release()
			return err
		}
		places = append(places, place)
	}
	context.AfterFunc(request, release)
	return nil
}

// dial makes the cluster open a stream to the root.
func (a *API) dial(ctx context.Context, id api.ClusterID, r wire.StreamRequest) (io.ReadCloser, error) {
	r, err := a.delegate(ctx, id, r)
	if err != nil {
		return nil, err
	}
	return a.opt.Clusters.Ask(ctx, id, r)
}

// delegate adds the user to a request to a cluster. It is the only place where the root gives a
// cluster a credential of the user: a token delegated for this one request.
func (a *API) delegate(ctx context.Context, id api.ClusterID, r wire.StreamRequest) (_ wire.StreamRequest, err error) {
	p := principal(ctx)
	r.For = streams.For(p.Tenant, p.User)
	r.Token, err = a.opt.Accounts.Delegate(authenticated(ctx), api.ClusterAudience(id), r.CallObject())
	return r, err
}

// clusterProblem returns the cluster's problem as an error. 401 and 5xx, except 504, become 503:
// the user's token is valid at the root, so that signing in again would not help.
func clusterProblem(id api.ClusterID, resp *http.Response) error {
	var p api.Problem
	text, err := jsonsize.Limit{Bytes: maxSmallBody}.Read(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil || p.Status != resp.StatusCode {
		p = problem.New(resp.StatusCode, resp.Status).Problem
	}
	p.Detail = fmt.Sprintf("cluster %s: %s", id, p.Detail)
	if p.Status == http.StatusUnauthorized || p.Status >= 500 && p.Status != http.StatusGatewayTimeout {
		p = problem.New(http.StatusServiceUnavailable, p.Detail).Problem
	}
	return &p
}
