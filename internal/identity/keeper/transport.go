package keeper

import (
	"crypto/tls"
	"net/http"
	"sync"
)

// Transport is a client's HTTP whose requests show the certificate of today. A
// server checks the certificate of the connection with every request, and HTTP/2
// keeps one connection for as long as it is used: it would outlive the
// certificate that it began with. After a renewal, new requests make a new
// connection, while what is open, a stream of months, stays on its own.
type Transport struct {
	own  func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	make func() *http.Transport

	mu   sync.Mutex // guards the fields below
	cert *tls.Certificate
	now  *http.Transport
}

// NewTransport is a transport whose certificate is own's, a keeper's
// GetClientCertificate. fresh makes one for each certificate, with sessions of
// its own: one that is resumed shows the certificate that it began with.
func NewTransport(own func(*tls.CertificateRequestInfo) (*tls.Certificate, error), fresh func() *http.Transport) *Transport {
	return &Transport{own: own, make: fresh}
}

// RoundTrip is http.RoundTripper's.
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

// CloseIdleConnections is for http.Client.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	now := t.now
	t.mu.Unlock()
	if now != nil {
		now.CloseIdleConnections()
	}
}
