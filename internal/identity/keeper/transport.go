package keeper

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/trust"
)

// dialTime is for a connection. A machine that is gone answers nothing, and another address may.
const dialTime = 5 * time.Second

// Transport is an HTTP transport that uses the current certificate for each request. Servers
// check the connection's certificate with every request, and an HTTP/2 connection in use may
// outlive its certificate. Therefore, after a renewal, new requests use a new connection, while
// open streams stay on the old one.
type Transport struct {
	own  func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	make func() *http.Transport

	mu   sync.Mutex // guards the fields below
	cert *tls.Certificate
	now  *http.Transport
}

// NewTransport makes a transport with the certificate of own, a keeper's GetClientCertificate.
// fresh makes the transport for each certificate. It needs its own session cache, because a
// resumed session has the old certificate.
func NewTransport(own func(*tls.CertificateRequestInfo) (*tls.Certificate, error), fresh func() *http.Transport) *Transport {
	return &Transport{own: own, make: fresh}
}

func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	cert, err := t.own(nil)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	old := t.now
	if old == nil || cert != t.cert {
		t.cert, t.now = cert, t.make()
	}
	now := t.now
	t.mu.Unlock()
	if old != nil && old != now {
		old.CloseIdleConnections()
	}
	return now.RoundTrip(r)
}

func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	now := t.now
	t.mu.Unlock()
	if now != nil {
		now.CloseIdleConnections()
	}
}

// Client returns an HTTP client of the server who, with the certificate of own. It follows no
// redirects. A connection that is idle for longer than idle is closed; a nil conf2 leaves
// HTTP/2 at its defaults.
func Client(v *trust.Verifier, who identity.Identity, own func(*tls.CertificateRequestInfo) (*tls.Certificate, error),
	idle time.Duration, conf2 *http.HTTP2Config,
) *http.Client {
	return &http.Client{
		Transport: NewTransport(own, func() *http.Transport {
			return &http.Transport{
				TLSClientConfig:     v.Client(who, own),
				ForceAttemptHTTP2:   true,
				HTTP2:               conf2,
				DialContext:         (&net.Dialer{Timeout: dialTime}).DialContext,
				TLSHandshakeTimeout: 10 * time.Second,
				IdleConnTimeout:     idle,
				Proxy:               http.ProxyFromEnvironment,
			}
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
