package mongo_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mongo"
	"github.com/treeline-edge/treeline/internal/store/mongo/mongotest"
	"github.com/treeline-edge/treeline/internal/store/storetest"
)

func TestStore(t *testing.T) {
	uri := mongotest.URI(t)
	var places atomic.Int64
	storetest.Run(t, func(*testing.T) storetest.Place {
		role := fmt.Sprintf("suite-%d", places.Add(1))
		return func(t *testing.T) store.Store { return open(t, uri, role) }
	}, deviations(t, uri)...)
}

// deviations are those of FerretDB 1, whose update reads the documents that
// match, and writes them back in a second step. MongoDB has none.
func deviations(t *testing.T, uri string) []storetest.Deviation {
	t.Helper()
	client, err := driver.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	info, err := client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "buildInfo", Value: 1}}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := info.LookupErr("ferretdbVersion"); err != nil {
		return nil
	}
	return []storetest.Deviation{storetest.RacyVersions}
}

func TestRolesShareADatabase(t *testing.T) {
	uri := mongotest.URI(t)
	root, cluster := open(t, uri, "root"), open(t, uri, "cluster-a")
	d := store.Doc{Kind: "app", Key: "acme/shop", Version: 1, Data: []byte("of the root")}
	if err := root.Save(t.Context(), []store.Doc{d}); err != nil {
		t.Fatal(err)
	}
	if docs, err := store.Load(t.Context(), cluster); err != nil || len(docs) != 0 {
		t.Errorf("the cluster sees %v, %v, want no error, 0 of docs", docs, err)
	}
	d.Data = []byte("of the cluster")
	if err := cluster.Save(t.Context(), []store.Doc{d}); err != nil {
		t.Error(err)
	}
}

func TestTwoProcessesOfOneRoleMeetInAConflict(t *testing.T) {
	uri := mongotest.URI(t)
	one, two := open(t, uri, "same"), open(t, uri, "same")
	d := store.Doc{Kind: "app", Key: "acme/shop", Version: 1, Data: []byte("one")}
	if err := one.Save(t.Context(), []store.Doc{d}); err != nil {
		t.Fatal(err)
	}
	d.Data = []byte("two")
	if err := two.Save(t.Context(), []store.Doc{d}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
}

func TestForeignRecordIsCorruption(t *testing.T) {
	uri := mongotest.URI(t)
	s := open(t, uri, "foreign")
	client, err := driver.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	database := strings.TrimPrefix(uri[strings.LastIndex(uri, "/"):], "/")
	records := client.Database(database).Collection("store.foreign")
	if _, err := records.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "app/a"}, {Key: "version", Value: "one"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Load(t.Context(), s); !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "app/a") {
		t.Errorf("got %v, want ErrCorrupt that names the record", err)
	}
}

func TestNoServerIsUnavailable(t *testing.T) {
	left := leaktest.Since(t)
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	uri := "mongodb://user:secret@" + addr + "/treeline?serverSelectionTimeoutMS=200"
	_, err = mongo.Open(t.Context(), uri, "root")
	if !errors.Is(err, api.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want ErrUnavailable without the password", err)
	}
	left()
}

func TestAServerThatStallsIsUnavailable(t *testing.T) {
	// A server that accepts connections and never answers.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	uri := "mongodb://" + listener.Addr().String() + "/?serverSelectionTimeoutMS="
	if _, err := mongo.Open(t.Context(), uri+"200", "root"); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := mongo.Open(ctx, uri+"60000", "root"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the end of the context", err)
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	for _, tc := range []struct{ uri, role string }{
		{"mongodb://127.0.0.1", ""},
		{"mongodb://127.0.0.1", "a$b"},
		{"http://127.0.0.1", "root"},
	} {
		if _, err := mongo.Open(t.Context(), tc.uri, tc.role); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%+v: got %v, want ErrInvalid", tc, err)
		}
	}
}

func BenchmarkSave(b *testing.B) {
	s := open(b, mongotest.URI(b), "bench")
	data := make([]byte, 1024)
	for i := range b.N {
		if err := s.Save(b.Context(), []store.Doc{{Kind: "app", Key: "one", Version: uint64(i + 1), Data: data}}); err != nil {
			b.Fatal(err)
		}
	}
}

func open(t testing.TB, uri, role string) *mongo.Store {
	t.Helper()
	s, err := mongo.Open(t.Context(), uri, role)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
