// Package mongotest provides the MongoDB server for tests: the one at TREELINE_TEST_MONGODB_URI,
// or a new FerretDB whose program, built by scripts/ferretdb, is TREELINE_TEST_FERRETDB.
package mongotest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/treeline-edge/treeline/internal/freeport"
)

// URI returns the URI of a new database, which is dropped at the end of the test. A missing server
// skips the test, or fails it if TREELINE_TEST_REQUIRE is 1.
func URI(t testing.TB) string {
	t.Helper()
	uri := os.Getenv("TREELINE_TEST_MONGODB_URI")
	if uri == "" {
		uri = "mongodb://" + Start(t).Addr
	}
	return Database(t, uri)
}

// Available reports whether URI has a server, or fails the test because every backend is required.
func Available() bool {
	return os.Getenv("TREELINE_TEST_MONGODB_URI") != "" || os.Getenv("TREELINE_TEST_FERRETDB") != "" || os.Getenv("TREELINE_TEST_REQUIRE") == "1"
}

// Database returns the URI of a new database on the server at uri, which is dropped at the end of
// the test.
func Database(t testing.TB, uri string) string {
	t.Helper()
	database := fmt.Sprintf("treeline_test_%d", time.Now().UnixNano())
	base, query, _ := strings.Cut(uri, "?")
	if i := strings.Index(base[len("mongodb://"):], "/"); i >= 0 {
		base = base[:len("mongodb://")+i]
	}
	t.Cleanup(func() {
		client, err := driver.Connect(options.Client().ApplyURI(uri))
		if err != nil {
			t.Error(err)
			return
		}
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(client.Database(database).Drop(ctx), client.Disconnect(ctx)); err != nil {
			t.Error(err)
		}
	})
	if query != "" {
		query = "?" + query
	}
	return base + "/" + database + query
}

// Server is a FerretDB that a test can stop and start again.
type Server struct {
	Addr string // host:port

	binary, dir string
	log         *os.File
	cmd         *exec.Cmd
}

// Start starts a FerretDB that ends with the test, even if TREELINE_TEST_MONGODB_URI is set. It is
// for tests that stop the server.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{binary: os.Getenv("TREELINE_TEST_FERRETDB"), dir: t.TempDir()}
	const reason = "no MongoDB server: set TREELINE_TEST_FERRETDB=$(scripts/ferretdb), or where one that cannot be stopped will do TREELINE_TEST_MONGODB_URI"
	if s.binary == "" && os.Getenv("TREELINE_TEST_REQUIRE") == "1" {
		t.Fatal("TREELINE_TEST_REQUIRE=1 asks for every backend: " + reason)
	}
	if s.binary == "" {
		t.Skip(reason)
	}
	var err error
	if s.Addr, err = freeport.Addr(); err != nil {
		t.Fatal(err)
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		_ = s.log.Close()
		if t.Failed() {
			b, _ := os.ReadFile(s.log.Name())
			t.Logf("the end of what FerretDB said:\n%s", b[max(0, len(b)-4096):])
		}
	})
	s.Restart(t)
	return s
}

// Stop kills the server.
func (s *Server) Stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Restart starts the server after Stop with its documents, and returns when it answers.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.cmd = exec.Command(s.binary, "--handler=sqlite", "--sqlite-url=file:"+s.dir+"/", "--state-dir="+s.dir,
		"--listen-addr="+s.Addr, "--debug-addr=-", "--telemetry=disable", "--log-level=warn")
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", s.binary, err)
	}
	client, err := driver.Connect(options.Client().ApplyURI("mongodb://" + s.Addr).SetServerSelectionTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	// The driver retries until the server answers.
	if err := client.Ping(t.Context(), nil); err != nil {
		t.Fatalf("FerretDB does not answer at %s: %v", s.Addr, err)
	}
}
