package nodelink

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/enrol"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/refusals"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

const maxProblem = 64 << 10 // bytes of a problem that a node sends in place of a stream

// ServerOptions configure a Server.
type ServerOptions struct {
	Cluster   api.ClusterID
	Authority func() *ca.Authority // returns the cluster's current authority
	Tokens    *jointoken.Store
	Members   *Members
	Streams   *streams.Registry
	Admit     func(context.Context, cluster.Input) error // passes cluster.JoinNode and waits until it is stored
	// Purging handles a node's question whether it must purge itself, and returns the answer.
	// Left removes a node that has deleted its data; it may be called twice.
	Purging func(context.Context, api.NodeID, wire.NodePurging) (bool, error)
	Left    func(context.Context, api.NodeID) error
	// Value returns a config or secret, and whether an instance on the node needs it.
	Value func(context.Context, api.NodeID, wire.WantValue) (wire.Value, bool, error)
	// AttachVolume and DetachVolume give a CSI volume to a placement of the node, and take it back; nil:
	// the cluster has no CSI drivers.
	AttachVolume func(context.Context, api.NodeID, wire.WantVolume) (wire.VolumeAttached, error)
	DetachVolume func(context.Context, api.NodeID, wire.WantVolume) error

	Brokers []string // see wire.Desired.Brokers; empty: this port
	// Replicas returns the URLs of all replicas of the cluster; nil: it has none.
	Replicas func() []string
	Now      func() time.Time // default time.Now
	Log      *slog.Logger     // default slog.Default
}

// Server serves nodes over HTTP: joins, renewals, purges, configs and secrets, and streams.
type Server struct {
	opt    ServerOptions
	mux    *http.ServeMux
	shares *apishare.Shares
}

func NewServer(o ServerOptions) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Replicas == nil {
		o.Replicas = func() []string { return nil }
	}
	d := &Server{opt: o, mux: http.NewServeMux(), shares: apishare.New(apishare.Options{Now: o.Now})}
	d.mux.Handle("POST /v1/join/node", &enrol.Server[wire.JoinNode, wire.NodeJoined]{
		Shares: d.shares, Refused: refusals.New(o.Log, "join of a node refused"), Admit: d.joinNode,
		Describe: func(req wire.JoinNode) []any { return []any{"node", req.Info.ID, "hostname", req.Info.Hostname} },
	})
	d.mux.HandleFunc("POST /v1/node/renew", d.asNode(d.renew))
	d.mux.HandleFunc("POST /v1/node/brokers", d.asNode(func(w http.ResponseWriter, _ *http.Request, _ api.NodeID) error {
		call.WriteJSON(w, wire.NodeBrokers{Brokers: o.Brokers})
		return nil
	}))
	d.mux.HandleFunc("POST /v1/node/purge", d.asNode(d.purge))
	d.mux.HandleFunc("POST /v1/node/left", d.asNode(d.left))
	d.mux.HandleFunc("POST /v1/node/value", d.asNode(d.value))
	d.mux.HandleFunc("POST /v1/node/volumes/attach", d.asNode(d.attachVolume))
	d.mux.HandleFunc("POST /v1/node/volumes/detach", d.asNode(d.detachVolume))
	d.mux.HandleFunc("POST /v1/node/streams/{id}", d.asNode(d.stream))
	d.mux.HandleFunc("GET /v1/node/streams/{id}", d.asNode(d.streamDown))
	return d
}

// Handler serves /v1/join/node and /v1/node/.
func (d *Server) Handler() http.Handler { return d.mux }

// joinNode admits a node. Each step may be repeated.
func (d *Server) joinNode(ctx context.Context, req wire.JoinNode) (wire.NodeJoined, error) {
	tok, err := jointoken.Parse(req.Token)
	if err != nil {
		return wire.NodeJoined{}, err
	}
	csr, key, err := enrol.ParseRequest(req.CSR)
	if err != nil {
		return wire.NodeJoined{}, err
	}
	info := req.Info
	if _, bad, _ := bounds.Apply(info); bad.Total > 0 {
		return wire.NodeJoined{}, fmt.Errorf("node's description: %w", bad.Err())
	}
	if info.ID == identity.ClusterCN {
		return wire.NodeJoined{}, fmt.Errorf("node name %q is reserved, choose another: %w", info.ID, api.ErrInvalid)
	}
	if had, ok := d.opt.Members.holds(info.ID); info.ID != "" && ok && had != key {
		return wire.NodeJoined{}, taken(info.ID) // checked before the token is used
	}
	name, rec, err := d.opt.Tokens.Redeem(ctx, jointoken.Claim{
		Secret: tok.Secret, Scope: jointoken.ForNode, Cluster: d.opt.Cluster, Key: key, Name: string(info.ID), Default: string(nameFor(info.Hostname)),
	})
	if err != nil {
		return wire.NodeJoined{}, err
	}
	info.ID = api.NodeID(name)
	if err := d.shares.Certificate(string(info.ID.Addr())); err != nil {
		return wire.NodeJoined{}, err
	}
	now := d.opt.Now()
	if err := d.opt.Members.admit(ctx, info.ID, key, now); err != nil {
		return wire.NodeJoined{}, err
	}
	if err := d.opt.Admit(ctx, cluster.JoinNode{Info: info, Token: rec.ID}); err != nil {
		return wire.NodeJoined{}, err
	}
	out, err := d.sign(csr, info.ID)
	if err != nil {
		return wire.NodeJoined{}, err
	}
	d.opt.Log.Info("node joined", "node", info.ID, "hostname", info.Hostname, "capacity", info.Capacity, "token", rec.ID)
	return out, nil
}

func (d *Server) sign(csr []byte, n api.NodeID) (wire.NodeJoined, error) {
	chain, err := d.opt.Authority().SignNode(d.opt.Now(), csr, n)
	if err != nil {
		return wire.NodeJoined{}, err
	}
	out := wire.NodeJoined{ID: n, Cluster: d.opt.Cluster, Chain: string(ca.EncodeChain(chain)), Brokers: d.opt.Brokers, Replicas: d.opt.Replicas()}
	if len(out.Brokers) > 0 && out.Brokers[0] != wire.EmbeddedBroker {
		out.MQTT = out.Brokers[0] // for nodes of earlier releases
	}
	return out, nil
}

// nameFor returns a name for a node: the host's name and a random suffix.
func nameFor(hostname string) api.NodeID {
	host, _, _ := strings.Cut(strings.ToLower(hostname), ".")
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, host)
	if host = strings.Trim(host[:min(len(host), 48)], "-"); host == "" {
		host = "node"
	}
	return api.NodeID(host + "-" + strings.ToLower(rand.Text()[:6]))
}

func (d *Server) renew(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	if err := d.shares.Certificate(string(n.Addr())); err != nil {
		return err
	}
	var req wire.Renew
	if err := call.ReadJSON(w, r, &req); err != nil {
		return err
	}
	csr, _, err := enrol.ParseRequest(req.CSR)
	if err != nil {
		return err
	}
	out, err := d.sign(csr, n)
	if err != nil {
		return err
	}
	call.WriteJSON(w, out)
	return nil
}

// purge answers whether the node of the client certificate must delete its workloads, keys and
// data. The order is not sent over the broker, which may retain or repeat messages.
func (d *Server) purge(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	var req wire.NodePurging
	if err := call.ReadJSON(w, r, &req); err != nil {
		return err
	}
	ordered, err := d.opt.Purging(r.Context(), n, req)
	if err != nil {
		return err
	}
	call.WriteJSON(w, wire.NodePurge{Purge: ordered})
	return nil
}

// left removes the node of the client certificate after it has deleted its data.
func (d *Server) left(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	if err := d.opt.Left(r.Context(), n); err != nil {
		return err
	}
	d.opt.Log.Info("node has purged itself and is removed", "node", n)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// stream delivers the stream that a node dials out, or its problem, to the waiting request.
func (d *Server) stream(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	id, from := r.PathValue("id"), string(n.Addr())
	if t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); t == "application/problem+json" {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxProblem))
		if err != nil {
			return fmt.Errorf("read the problem: %w: %w", err, api.ErrInvalid)
		}
		if err := d.opt.Streams.Fail(id, from, call.ParseProblem(t, http.StatusServiceUnavailable, text)); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	end := streams.NewEnd(w, r)
	err := d.opt.Streams.Deliver(r.Context(), id, from, end)
	if end.Finish(err) {
		return nil
	}
	return err
}

// streamDown lets the waiting request write to the node, for a stream in both directions.
func (d *Server) streamDown(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	end := streams.NewEnd(w, r)
	err := d.opt.Streams.DeliverDown(r.Context(), r.PathValue("id"), string(n.Addr()), end)
	if end.Finish(err) {
		return nil
	}
	return err
}

// asNode serves requests that have the certificate of a member.
func (d *Server) asNode(serve func(http.ResponseWriter, *http.Request, api.NodeID) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := apishare.DoPeer(d.shares, r, d.peer, func(r *http.Request, n api.NodeID) error { return serve(w, r, n) })
		if err != nil {
			d.opt.Log.Debug("request of a node refused", "from", r.RemoteAddr, "path", r.URL.Path, "err", err)
			call.Write(w, err)
		}
	}
}

func (d *Server) peer(r *http.Request) (api.NodeID, error) {
	if r.TLS == nil {
		return "", fmt.Errorf("no client certificate, a node must show its own: %w", api.ErrUnauthenticated)
	}
	return d.opt.Members.Node(*r.TLS)
}
