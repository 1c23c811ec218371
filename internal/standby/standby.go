// Package standby makes a daemon, the root or a cluster, one of several replicas with a common store. A
// replica waits as a standby until no other one is active (Open, Await). It serves its health meanwhile,
// and forwards the requests of people to the active replica.
//
// The two replicas prove to each other with a certificate of the daemon that they are the same daemon. The
// active one takes the client's address from a header, and believes it only from a replica. A forwarded
// request is never forwarded again. Requests of the machines below (clusters at the root, nodes at a
// cluster) are not forwarded, because their certificate proves who they are only on their own connection.
//
//	r, err := standby.Open(ctx, standby.Options{…})
//	ln, err := r.Await(ctx, standby.Serving{…})
//	h := standby.Accept(verifier, self, r.Guard(api)) // at the active replica
package standby

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/keeper"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/store/shared"
)

// clientHeader has the address and port of the client of a forwarded request.
const clientHeader = "Treeline-Forwarded-For"

// The active replica allows 32 connections from one machine: 24 for WebSockets, and 6 for the 512
// requests of strangers that package apishare forwards at once, 100 on each connection.
var upgrades = fairshare.Declare(fairshare.Bound{
	Resource: "WebSockets that a standby replica forwards", Total: 24, Share: []int{16, 8}, Per: "subnet, then address",
	Beyond: "503, with which the CLI asks the active replica itself", Attack: "TestForwardedWebSocketsAreBounded",
})

// ForwardOptions configure Forward.
type ForwardOptions struct {
	Self     identity.Identity // of the daemon: all its replicas have it
	Verifier *trust.Verifier
	Own      func(*tls.CertificateRequestInfo) (*tls.Certificate, error) // the replica's certificate
	Replicas *replicas.Addresses                                         // the active replica first
	// Active describes the active replica for people; ok is false while there is none.
	Active func() (text string, ok bool)
	// Executed is called when the active replica has answered a request, or may have executed it (status 0), before the client has the
	// answer; nil: nobody.
	Executed func(r *http.Request, status int)
	Log      *slog.Logger
}

// Refuse answers with 503 and marks the answer as a standby's.
func Refuse(w http.ResponseWriter, detail string) {
	w.Header().Set(replicas.Standby, "true")
	problem.Write(w, problem.New(http.StatusServiceUnavailable, detail))
}

// below returns the machines that a daemon serves, and the prefix of their requests' paths.
func below(self identity.Identity) (machines, path string) {
	if self.Kind == identity.Root {
		return "clusters", "/v1/cluster/"
	}
	return "nodes", "/v1/node/"
}

// Forward returns a handler that forwards requests to the active replica. It refuses those of machines
// below and of other replicas, and all while no replica is active.
func Forward(o ForwardOptions) http.Handler {
	if o.Executed == nil {
		o.Executed = func(*http.Request, int) {}
	}
	f := &forwarder{o: o, upgrades: fairshare.NewPool(upgrades, fairshare.Policy{Fixed: true})}
	transport := func(websocket bool) http.RoundTripper {
		return o.Replicas.Transport(keeper.NewTransport(o.Own, func() *http.Transport {
			t := &http.Transport{
				TLSClientConfig: o.Verifier.Client(o.Self, o.Own), ForceAttemptHTTP2: !websocket,
				DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSHandshakeTimeout: 5 * time.Second,
				IdleConnTimeout: time.Minute, DisableCompression: true,
			}
			if websocket {
				t.Protocols = new(http.Protocols)
				t.Protocols.SetHTTP1(true)
			} else {
				t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second}
			}
			return t
		}), 0)
	}
	f.plain, f.websocket = f.proxy(transport(false)), f.proxy(transport(true))
	// Clients are counted by their address, because only the active replica can check their tokens.
	nobody := func(context.Context) rights.Principal { return rights.Principal{} }
	return apishare.New(apishare.Options{Person: nobody}).Wrap(f)
}

type forwarder struct {
	o                ForwardOptions
	plain, websocket http.Handler
	upgrades         *fairshare.Pool
}

func (f *forwarder) proxy(t http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{
		Transport: t, FlushInterval: -1, ErrorLog: slog.NewLogLogger(f.o.Log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "https", "active" // Replicas has the address
			p.Out.Header.Set(clientHeader, p.In.RemoteAddr)
		},
		ModifyResponse: func(resp *http.Response) error {
			f.o.Executed(resp.Request, resp.StatusCode)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			f.o.Executed(r, 0)
			f.o.Log.Debug("request not forwarded to the active replica", "method", r.Method, "path", r.URL.Path, "err", err)
			text, _ := f.o.Active()
			if replicas.NotSent(err) {
				f.refuse(w, "is a standby replica and cannot reach the active one: "+text)
				return
			}
			problem.Write(w, problem.New(http.StatusServiceUnavailable, "the active replica of the "+string(f.o.Self.Kind)+" did not answer, and may have executed the request; check before you repeat it: "+text))
		},
	}
}

func (f *forwarder) refuse(w http.ResponseWriter, why string) {
	Refuse(w, "this "+string(f.o.Self.Kind)+" "+why)
}

// ServeHTTP implements http.Handler.
func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, active := f.o.Active()
	machines, path := below(f.o.Self)
	switch peer := r.TLS != nil && len(r.TLS.PeerCertificates) > 0; {
	case peer, strings.HasPrefix(r.URL.Path, path):
		f.refuse(w, "is a standby replica, which serves no "+machines+": "+text)
		return
	case !active:
		f.refuse(w, "is a standby replica, and no replica is active: "+text)
		return
	case r.Header.Get("Upgrade") == "":
		f.plain.ServeHTTP(w, r)
		return
	}
	place, err := f.upgrades.Take(time.Now(), fairshare.Remote(r.RemoteAddr), nil)
	if err != nil {
		f.refuse(w, "is a standby replica, and forwards no more WebSockets from this address: "+text)
		return
	}
	defer place.Release()
	fairshare.ReleasePlace(r.Context()) // of a request under way
	f.websocket.ServeHTTP(w, r)
}

// Reads answers requests at a standby from a copy of the store.
type Reads interface {
	shared.Copy
	// Reads reports whether the copy may answer a request, if it is current.
	Reads(r *http.Request) bool
	// Answer answers such a request, or returns false and has written nothing, so that it is forwarded.
	Answer(w http.ResponseWriter, r *http.Request) bool
	// Forwarded says that the active replica may have executed a request, before the client has the answer.
	Forwarded(method string)
}

// readFirst answers from the copy that f keeps if that can answer, and passes all other requests on.
func readFirst(reads Reads, f *shared.Follower, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if reads.Reads(r) && reads.Answer(w, r) {
			f.Want()
			return
		}
		next.ServeHTTP(w, r)
	})
}

// executed is ForwardOptions.Executed for a copy that f keeps. A request that the copy could have answered makes f follow if the active
// replica has answered it with success: it has verified the token, which the copy may not be able to.
func executed(reads Reads, f *shared.Follower) func(r *http.Request, status int) {
	return func(r *http.Request, status int) {
		reads.Forwarded(r.Method)
		switch {
		case reads.Reads(r):
			if status == http.StatusOK || status == http.StatusNotModified {
				f.Want()
			}
		case r.Method != http.MethodGet && status < http.StatusBadRequest:
			f.Wake() // for the client to read what it wrote
		}
	}
}

// Accept serves requests at the active replica of self. One from another replica counts as one from the client
// that the replica names, without a certificate; the header of anybody else is removed.
func Accept(v *trust.Verifier, self identity.Identity, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := r.Header.Get(clientHeader)
		r.Header.Del(clientHeader)
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		// Parsing is cheap; only the certificates of replicas are verified here.
		if id, err := identity.Of(r.TLS.PeerCertificates[0]); err != nil || id != self {
			next.ServeHTTP(w, r)
			return
		}
		id, err := v.Peer(*r.TLS)
		client, wrong := netip.ParseAddrPort(from)
		switch {
		case err != nil || id != self:
			problem.Write(w, problem.New(http.StatusUnauthorized, "the certificate of the replica is not valid"))
		case wrong != nil:
			problem.Write(w, problem.New(http.StatusBadRequest, "a replica forwards a request without the address of its client"))
		case r.URL.Path == "/metrics" && r.Method != http.MethodHead: // which is open to clients on the same machine
			problem.Write(w, problem.New(http.StatusForbidden, "a replica forwards requests to the API only"))
		default:
			forwarded := r.WithContext(r.Context())
			forwarded.RemoteAddr, forwarded.TLS = client.String(), nil
			next.ServeHTTP(w, forwarded)
		}
	})
}
