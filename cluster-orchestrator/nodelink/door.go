package nodelink

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
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
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/refusals"
	"github.com/treeline-edge/treeline/internal/streams"
)

const (
	maxJoin  = 64 << 10
	bodyTime = 30 * time.Second // for a small body to arrive
)

// DoorOptions are what a door needs.
type DoorOptions struct {
	Cluster   api.ClusterID
	Authority func() *ca.Authority // the cluster's, as it is now
	Desk      *jointoken.Desk
	Members   *Members
	Streams   *streams.Registry
	Admit     func(context.Context, cluster.Input) error // hands in cluster.JoinNode, durably
	// Purging records the question of a node whether it is to purge itself, and returns the
	// answer. Left removes a node that has deleted its data; it may be called twice.
	Purging func(context.Context, api.NodeID, api.NodePurging) (bool, error)
	Left    func(context.Context, api.NodeID) error
	MQTT    string           // the broker's URL for nodes; empty: this port
	Brokers []string         // where nodes find the broker, as api.Desired has it
	Now     func() time.Time // time.Now
	Log     *slog.Logger     // slog.Default
}

// Door serves nodes over HTTP: joining, renewing, streams.
type Door struct {
	opt     DoorOptions
	mux     *http.ServeMux
	shares  *apishare.Shares
	refused *refusals.Log // joins
}

// NewDoor is a door that is open.
func NewDoor(o DoorOptions) *Door {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	d := &Door{opt: o, mux: http.NewServeMux(), shares: apishare.New(apishare.Options{Now: o.Now}), refused: refusals.New(o.Log, "node not let in")}
	d.mux.HandleFunc("POST /v1/join/node", d.join)
	d.mux.HandleFunc("POST /v1/node/renew", d.asNode(d.renew))
	d.mux.HandleFunc("POST /v1/node/brokers", d.asNode(func(w http.ResponseWriter, _ *http.Request, _ api.NodeID) error {
		writeJSON(w, api.NodeBrokers{Brokers: o.Brokers})
		return nil
	}))
	d.mux.HandleFunc("POST /v1/node/purge", d.asNode(d.purge))
	d.mux.HandleFunc("POST /v1/node/left", d.asNode(d.left))
	d.mux.HandleFunc("POST /v1/node/streams/{id}", d.asNode(d.stream))
	return d
}

// Handler serves /v1/join/node and /v1/node/.
func (d *Door) Handler() http.Handler { return d.mux }

func (d *Door) join(w http.ResponseWriter, r *http.Request) {
	var req api.JoinNode
	var out api.NodeJoined
	err := d.shares.Do(r, apishare.Join(r.RemoteAddr), func(r *http.Request) error {
		err := readJSON(w, r, &req)
		if err == nil {
			out, err = d.joinNode(r.Context(), req)
		}
		return err
	})
	if err != nil {
		d.refused.Warn(fairshare.Remote(r.RemoteAddr), "node", req.Info.ID, "hostname", req.Info.Hostname, "from", r.RemoteAddr, "err", err)
		call.Write(w, err)
		return
	}
	writeJSON(w, out)
}

// joinNode lets a node in. Each part may be done twice, so that a join whose
// answer was lost is repeated with the same key and ends the same.
func (d *Door) joinNode(ctx context.Context, req api.JoinNode) (api.NodeJoined, error) {
	tok, err := jointoken.Parse(req.Token)
	if err != nil {
		return api.NodeJoined{}, err
	}
	csr, err := enrol.ParseRequest(req.CSR)
	if err != nil {
		return api.NodeJoined{}, err
	}
	key, err := ca.Fingerprint(csr)
	if err != nil {
		return api.NodeJoined{}, err
	}
	info := req.Info
	if _, bad, _ := bounds.Take(info); bad.Total > 0 {
		return api.NodeJoined{}, fmt.Errorf("node's description: %w", bad.Err())
	}
	if info.ID == identity.ClusterCN {
		return api.NodeJoined{}, fmt.Errorf("node name %q is reserved, choose another: %w", info.ID, api.ErrInvalid)
	}
	if had, ok := d.opt.Members.holds(info.ID); info.ID != "" && ok && had != key {
		return api.NodeJoined{}, taken(info.ID) // before it costs the token a use
	}
	name, rec, err := d.opt.Desk.Redeem(ctx, jointoken.Claim{
		Secret: tok.Secret, Scope: jointoken.ForNode, Cluster: d.opt.Cluster, Key: key, Name: string(info.ID), Else: string(nameFor(info.Hostname)),
	})
	if err != nil {
		return api.NodeJoined{}, err
	}
	info.ID = api.NodeID(name)
	if err := d.shares.Certificate(string(info.ID.Addr())); err != nil {
		return api.NodeJoined{}, err
	}
	now := d.opt.Now()
	if err := d.opt.Members.admit(ctx, info.ID, key, now); err != nil {
		return api.NodeJoined{}, err
	}
	if err := d.opt.Admit(ctx, cluster.JoinNode{Info: info, Token: rec.ID}); err != nil {
		return api.NodeJoined{}, err
	}
	out, err := d.sign(csr, info.ID)
	if err != nil {
		return api.NodeJoined{}, err
	}
	d.opt.Log.Info("node joined", "node", info.ID, "hostname", info.Hostname, "capacity", info.Capacity, "token", rec.ID)
	return out, nil
}

func (d *Door) sign(csr []byte, n api.NodeID) (api.NodeJoined, error) {
	chain, err := d.opt.Authority().SignNode(d.opt.Now(), csr, n)
	if err != nil {
		return api.NodeJoined{}, err
	}
	return api.NodeJoined{ID: n, Cluster: d.opt.Cluster, Chain: string(ca.EncodeChain(chain)), MQTT: d.opt.MQTT}, nil
}

// nameFor makes a name that nobody has: the host's, and a few letters of chance.
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

func (d *Door) renew(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	if err := d.shares.Certificate(string(n.Addr())); err != nil {
		return err
	}
	var req api.Renew
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	csr, err := enrol.ParseRequest(req.CSR)
	if err != nil {
		return err
	}
	out, err := d.sign(csr, n)
	if err != nil {
		return err
	}
	writeJSON(w, out)
	return nil
}

// purge answers whether the node of the client certificate is to delete its workloads,
// keys and data. The order is given here alone, not over the broker, which may retain or
// repeat messages. Certificates from before the node's latest join are refused.
func (d *Door) purge(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	var req api.NodePurging
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	ordered, err := d.opt.Purging(r.Context(), n, req)
	if err != nil {
		return err
	}
	writeJSON(w, api.NodePurge{Purge: ordered})
	return nil
}

// left removes the node of the client certificate, which reports that it has deleted its
// data.
func (d *Door) left(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	if err := d.opt.Left(r.Context(), n); err != nil {
		return err
	}
	d.opt.Log.Info("node has purged itself and is removed", "node", n)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// stream splices what the node dialled out with to who asked for it.
func (d *Door) stream(w http.ResponseWriter, r *http.Request, n api.NodeID) error {
	id, from := r.PathValue("id"), string(n.Addr())
	if t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); t == "application/problem+json" {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJoin))
		if err != nil {
			return fmt.Errorf("read the problem: %w: %w", err, api.ErrInvalid)
		}
		if err := d.opt.Streams.Fail(id, from, call.ParseProblem(t, http.StatusServiceUnavailable, text)); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	err := d.opt.Streams.Deliver(r.Context(), id, from, r.Body)
	_ = rc.SetReadDeadline(time.Unix(1, 0)) // ends a read that is under way
	if r.Context().Err() != nil {
		return nil
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// asNode serves who shows a member's certificate. It is checked with every
// request, because a node may be removed while its connection lasts.
func (d *Door) asNode(serve func(http.ResponseWriter, *http.Request, api.NodeID) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n, unknown := d.peer(r)
		holder := apishare.Stranger(r.RemoteAddr)
		switch {
		case unknown != nil:
		case r.PathValue("id") != "":
			holder = apishare.Stream(string(n.Addr()), r.Pattern)
		default:
			holder = apishare.Peer(string(n.Addr()), r.Pattern)
		}
		err := d.shares.Do(r, holder, func(r *http.Request) error {
			if unknown != nil {
				return unknown
			}
			return serve(w, r, n)
		})
		if err != nil {
			d.opt.Log.Debug("request of a node refused", "node", n, "path", r.URL.Path, "err", err)
			call.Write(w, err)
		}
	}
}

func (d *Door) peer(r *http.Request) (api.NodeID, error) {
	if r.TLS == nil {
		return "", fmt.Errorf("a node shows its certificate: %w", api.ErrUnauthenticated)
	}
	return d.opt.Members.Node(*r.TLS)
}

func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJoin)).Decode(into)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return fmt.Errorf("the body has more than %d bytes: %w", large.Limit, api.ErrTooLarge)
	case err != nil:
		return fmt.Errorf("read the body of %s: %w: %w", r.URL.Path, err, api.ErrInvalid)
	}
	return nil
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // who asked is gone
}
