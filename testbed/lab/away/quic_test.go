package away

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// quicPort is where instances serve QUIC.
const quicPort = 443

var quicConfig = &quic.Config{MaxIdleTimeout: tenMinutes, HandshakeIdleTimeout: patience}

// quicKeys are a certificate for servers and clients that trust it.
type quicKeys struct{ server, client *tls.Config }

func keys(t *testing.T) quicKeys {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"web"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	own := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return quicKeys{
		server: &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: []string{"who"}},
		client: &tls.Config{RootCAs: pool, ServerName: "web", NextProtos: []string{"who"}},
	}
}

// serve answers each stream with the instance's name and the received data.
func (k quicKeys) serve(t *testing.T, in *lab.Inside) {
	t.Helper()
	pc, err := in.ListenPacket(fmt.Sprintf(":%d", quicPort))
	if err != nil {
		t.Fatal(err)
	}
	tr := &quic.Transport{Conn: pc}
	ln, err := tr.Listen(k.server, quicConfig)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		_ = tr.Close()
		_ = pc.Close()
	})
	go func() {
		for c, err := ln.Accept(ctx); err == nil; c, err = ln.Accept(ctx) {
			go func() {
				for s, err := c.AcceptStream(ctx); err == nil; s, err = c.AcceptStream(ctx) {
					go func() {
						defer s.Close()
						if _, err := io.Copy(s, s); err == nil {
							_, _ = io.WriteString(s, string(in.W.Instance))
						}
					}()
				}
			}()
		}
	}()
}

// quicConn is a QUIC connection from inside a client.
type quicConn struct{ *quic.Conn }

func (k quicKeys) dial(t *testing.T, from *lab.Inside, to string) quicConn {
	t.Helper()
	pc, err := from.ListenPacket(":0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tr := &quic.Transport{Conn: pc}
	t.Cleanup(func() {
		_ = tr.Close()
		_ = pc.Close()
	})
	c, err := tr.Dial(ctx, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)), k.client, quicConfig)
	if err != nil {
		t.Fatalf("QUIC to %s: %v", to, err)
	}
	return quicConn{c}
}

// ask sends a request on a new stream and returns the instance that answers.
func (c quicConn) ask(what string) (api.InstanceID, error) {
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	s, err := c.OpenStreamSync(ctx)
	if err != nil {
		return "", err
	}
	_ = s.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(s, what); err != nil {
		return "", err
	}
	if err := s.Close(); err != nil {
		return "", err
	}
	got, err := io.ReadAll(s)
	if err != nil {
		return "", err
	}
	if len(got) < len(what) || string(got[:len(what)]) != what {
		return "", fmt.Errorf("read %d bytes that differ from those sent", len(got))
	}
	return api.InstanceID(got[len(what):]), nil
}

// by returns a request that fails unless the connection's first instance answers.
func (c quicConn) by(first api.InstanceID) say {
	return func(word string) error {
		id, err := c.ask(word)
		if err == nil && id != first {
			return fmt.Errorf("%s answered, want %s", id, first)
		}
		return err
	}
}
