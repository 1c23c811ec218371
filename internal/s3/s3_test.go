package s3

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// server is gofakes3 with a bucket. It does not check signatures.
func server(t *testing.T) func(string) string {
	t.Helper()
	all := s3mem.New()
	if err := all.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewTLSServer(gofakes3.New(all).Server())
	t.Cleanup(srv.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return env(srv.URL, ca)
}

// env returns the environment for a server.
func env(endpoint, ca string) func(string) string {
	all := map[string]string{
		"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-1", "AWS_ENDPOINT_URL_S3": endpoint, "AWS_CA_BUNDLE": ca,
	}
	return func(name string) string { return all[name] }
}

func object(t *testing.T, env func(string) string, url string) *Object {
	t.Helper()
	o, err := Parse(url, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.transport.CloseIdleConnections)
	return o
}

// pattern writes n bytes that differ from part to part.
func pattern(w io.Writer, n int) error {
	for at := 0; at < n; at += 1 << 20 {
		if _, err := w.Write([]byte(strings.Repeat(fmt.Sprintf("%08d", at), 1<<17)[:min(1<<20, n-at)])); err != nil {
			return err
		}
	}
	return nil
}

func TestObjectOfGofakes3IsWrittenInPartsAndReadBack(t *testing.T) {
	at := server(t)
	for _, size := range []int{5, minPart, 2*minPart + 7} {
		o := object(t, at, fmt.Sprintf("s3://backups/shop/%d", size))
		if err := o.Write(t.Context(), 0, func(w io.Writer) error { return pattern(w, size) }); err != nil {
			t.Fatalf("write %d bytes: %v", size, err)
		}
		err := o.Read(t.Context(), func(r io.Reader) error {
			want, to := io.Pipe()
			defer want.Close()
			go func() { _ = to.CloseWithError(pattern(to, size)) }()
			return same(r, want)
		})
		if err != nil {
			t.Errorf("read %d bytes: %v", size, err)
		}
	}
}

func same(got, want io.Reader) error {
	a, b := make([]byte, 1<<20), make([]byte, 1<<20)
	for n := 0; ; {
		x, errA := io.ReadFull(got, a)
		y, errB := io.ReadFull(want, b)
		if n += x; x != y || string(a[:x]) != string(b[:y]) {
			return fmt.Errorf("the content differs before byte %d: %w", n, errors.Join(errA, errB))
		}
		if errA != nil || errB != nil {
			if errA != errB { //nolint:errorlint // io.ReadFull's
				return errors.Join(errA, errB)
			}
			return nil
		}
	}
}

// TestBrokenUploadToGofakes3LeavesNothing: a stream that breaks, in every way, is neither an object nor
// parts that somebody pays for.
func TestBrokenUploadToGofakes3LeavesNothing(t *testing.T) {
	at := server(t)
	o := object(t, at, "s3://backups/shop/monday")
	if err := o.Write(t.Context(), 0, func(w io.Writer) error { _, err := w.Write([]byte("sunday")); return err }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		fail func() error
		want error
	}{
		"the node's error":     {t.Context(), func() error { return api.ErrFull }, api.ErrFull},
		"a stream that is cut": {t.Context(), func() error { return io.ErrUnexpectedEOF }, io.ErrUnexpectedEOF},
		"an end":               {t.Context(), func() error { return io.EOF }, io.EOF},
		"the user":             {ctx, func() error { cancel(); <-ctx.Done(); return ctx.Err() }, context.Canceled},
	} {
		for _, size := range []int{0, 100, minPart + 100} {
			err := o.Write(c.ctx, 0, func(w io.Writer) error {
				if err := pattern(w, size); err != nil {
					return err
				}
				return c.fail()
			})
			if !errors.Is(err, c.want) {
				t.Errorf("%s after %d bytes: got %v, want %v", name, size, err, c.want)
			}
		}
	}
	for left := range o.client.ListIncompleteUploads(t.Context(), "backups", "", true) {
		if left.Err != nil && minio.ToErrorResponse(left.Err).Code != "NoSuchUpload" {
			t.Errorf("list what is left of uploads: %v", left.Err)
		}
		if left.Err == nil {
			t.Errorf("left of an upload: %+v", left)
		}
	}
	err := o.Read(t.Context(), func(r io.Reader) error {
		if text, err := io.ReadAll(r); err != nil || string(text) != "sunday" {
			t.Errorf("the object: got %.20q, %v, want the earlier one", text, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	at := server(t)
	for _, url := range []string{"s3://", "s3://bucket", "s3://bucket/", "s3:///key", "s3://bucket/dir/"} {
		if _, err := Parse(url, Options{Env: at}); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: got %v, want that it is invalid", url, err)
		}
	}
	for _, endpoint := range []string{"s3.example.org", "ftp://s3.example.org", "https://id:secret@s3.example.org", "https://s3.example.org/path"} {
		if _, err := Parse("s3://backups/a", Options{Endpoint: endpoint, Env: at}); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("endpoint %s: got %v, want that it is invalid", endpoint, err)
		}
	}
	if _, err := Parse("s3://backups/a", Options{Env: func(string) string { return "" }}); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "AWS_SECRET_ACCESS_KEY") {
		t.Errorf("without credentials: got %v, want that they are named", err)
	}
	read := func(io.Reader) error { t.Error("something was read"); return nil }
	for _, url := range []string{"s3://backups/none", "s3://none/none"} {
		if err := object(t, at, url).Read(t.Context(), read); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("read %s: got %v, want not found", url, err)
		}
	}
	if err := object(t, at, "s3://none/a").Write(t.Context(), 0, func(w io.Writer) error { return pattern(w, 1) }); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("write into a bucket that does not exist: got %v, want not found", err)
	}
	if err := object(t, env("http://127.0.0.1:1", ""), "s3://backups/a").Write(t.Context(), 0, func(io.Writer) error { return nil }); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("a server that is not there: got %v, want unavailable", err)
	}
}
