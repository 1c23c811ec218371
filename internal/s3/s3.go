// Package s3 reads, writes and deletes objects of S3-compatible servers, for snapshots. It is the only
// adapter of github.com/minio/minio-go.
//
//	o, err := s3.Parse("s3://backups/db/monday", s3.Options{Env: os.Getenv})
//	err = o.Write(ctx, size, func(w io.Writer) error { … })
//	err = o.Read(ctx, func(r io.Reader) error { … })
package s3

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/treeline-edge/treeline/api"
)

// Scheme begins the URL of an object.
const Scheme = "s3://"

const (
	defaultEndpoint = "https://s3.amazonaws.com"
	minPart         = 16 << 20 // bytes of a part of an upload, which is in memory
	maxParts        = 9000     // a server accepts 10,000
	abortTime       = 30 * time.Second
)

// Options say where the server is and who asks it.
type Options struct {
	Endpoint string // URL; empty: that of the environment, else Amazon's
	// Env returns the variables of the environment that the tools of AWS use, too.
	Env func(string) string
}

// Object is an object of a server.
type Object struct {
	url         string
	bucket, key string
	client      *minio.Client
	transport   *http.Transport
}

// Parse returns the object of a URL s3://<bucket>/<key>. Errors: ErrInvalid (the URL, the endpoint, or
// credentials that are missing).
func Parse(text string, o Options) (*Object, error) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(text, Scheme), "/")
	if !strings.HasPrefix(text, Scheme) || bucket == "" || key == "" || strings.HasSuffix(key, "/") {
		return nil, fmt.Errorf("%q is not s3://BUCKET/KEY: %w", text, api.ErrInvalid)
	}
	id, secret := o.Env("AWS_ACCESS_KEY_ID"), o.Env("AWS_SECRET_ACCESS_KEY")
	if id == "" || secret == "" {
		return nil, fmt.Errorf("%s: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment: %w", text, api.ErrInvalid)
	}
	endpoint := cmp.Or(o.Endpoint, o.Env("AWS_ENDPOINT_URL_S3"), o.Env("AWS_ENDPOINT_URL"), defaultEndpoint)
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || strings.Trim(u.Path, "/") != "" || u.User != nil {
		return nil, fmt.Errorf("endpoint %q is not https://HOST[:PORT] or http://HOST[:PORT]: %w", endpoint, api.ErrInvalid)
	}
	transport, err := transport(u.Scheme == "https", o.Env("AWS_CA_BUNDLE"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	client, err := minio.New(u.Host, &minio.Options{
		Transport: transport,
		Creds:     credentials.NewStaticV4(id, secret, o.Env("AWS_SESSION_TOKEN")), Secure: u.Scheme == "https",
		Region: cmp.Or(o.Env("AWS_REGION"), o.Env("AWS_DEFAULT_REGION")),
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", text, err, api.ErrInvalid)
	}
	return &Object{url: text, bucket: bucket, key: key, client: client, transport: transport}, nil
}

// transport returns the transport for an endpoint whose certificate one in a file has signed; "": the
// system's.
func transport(secure bool, file string) (*http.Transport, error) {
	t, err := minio.DefaultTransport(secure)
	if err != nil || !secure || file == "" {
		return t, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read AWS_CA_BUNDLE: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("AWS_CA_BUNDLE: %s has no certificates: %w", file, api.ErrInvalid)
	}
	t.TLSClientConfig.RootCAs = pool
	return t, nil
}

// Write creates or replaces the object with what write writes, of which size is an estimate in bytes. It
// holds one part of it in memory. If write fails, or ctx ends, the object does not change, and the parts
// on the server are deleted.
func (o *Object) Write(ctx context.Context, size int64, write func(io.Writer) error) error {
	from, to := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := write(to)
		if err != nil {
			_ = to.CloseWithError(broken{err})
		} else {
			_ = to.Close()
		}
		written <- err
	}()
	// The requests outlive ctx a little, to delete the parts.
	put, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		_ = to.CloseWithError(broken{ctx.Err()})
		time.AfterFunc(abortTime, cancel)
	})()
	_, err := o.client.PutObject(put, o.bucket, o.key, from, -1, minio.PutObjectOptions{
		PartSize: uint64(max(minPart, size/maxParts)), NumThreads: 1, ContentType: "application/x-tar",
	})
	_ = from.CloseWithError(fmt.Errorf("write %s: the upload has ended: %w", o.url, api.ErrUnavailable))
	werr := <-written
	switch {
	case err == nil:
		return werr
	case errors.As(err, &broken{}):
		return err
	}
	return o.failed("write", err)
}

// broken is the error of who writes the object. The library takes io.ErrUnexpectedEOF for the end.
type broken struct{ error }

// Unwrap returns the cause.
func (b broken) Unwrap() error { return b.error }

// Read passes the content of the object to read.
func (o *Object) Read(ctx context.Context, read func(io.Reader) error) error {
	from, err := o.client.GetObject(ctx, o.bucket, o.key, minio.GetObjectOptions{})
	if err == nil {
		defer from.Close()
		_, err = from.Stat() // the first request
	}
	if err != nil {
		return o.failed("read", err)
	}
	return read(from)
}

// Remove deletes the object, and the parts of an upload that was interrupted. It succeeds if there is none.
func (o *Object) Remove(ctx context.Context) error {
	if err := o.client.RemoveIncompleteUpload(ctx, o.bucket, o.key); err != nil {
		return o.failed("delete the parts of", err)
	}
	if err := o.client.RemoveObject(ctx, o.bucket, o.key, minio.RemoveObjectOptions{}); err != nil {
		return o.failed("delete", err)
	}
	return nil
}

// Close closes the idle connections to the server.
func (o *Object) Close() { o.transport.CloseIdleConnections() }

func (o *Object) failed(verb string, err error) error {
	kind := api.ErrUnavailable
	switch r := minio.ToErrorResponse(err); r.Code {
	case minio.NoSuchKey, minio.NoSuchBucket:
		kind = api.ErrNotFound
	case minio.AccessDenied, "InvalidAccessKeyId", "SignatureDoesNotMatch":
		kind = api.ErrForbidden
	}
	return fmt.Errorf("%s %s: %w: %w", verb, o.url, err, kind)
}
