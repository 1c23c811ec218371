// Package mongo is a store in a MongoDB replica set, or in a server with the same protocol, such
// as FerretDB. It uses only what both have: no transactions, change streams or expiry. Each
// store.Doc is one document of the server, and the filter of a write compares its version. This is
// atomic in MongoDB. FerretDB 1 reads and writes in two steps, so that two processes that write
// the same document at the same time can both succeed: use it only for tests or a single process.
// The log that replicas share (OpenLogs) inserts only, which is atomic in both.
//
//	s, err := mongo.Open(ctx, "mongodb://db1,db2,db3/treeline?replicaSet=rs0", "root")
//	if err != nil {
//		return err
//	}
//	defer s.Close()
package mongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// DefaultDatabase is used when the URI names none.
const DefaultDatabase = "treeline"

// Timeouts for one operation (the URI's timeoutMS takes precedence), for finding a primary
// (likewise serverSelectionTimeoutMS), and for Close.
const (
	operationTimeout = 10 * time.Second
	selectionTimeout = 5 * time.Second
	closeTimeout     = 5 * time.Second
)

// Store implements store.Store in one collection.
type Store struct {
	client *mongo.Client
	docs   *mongo.Collection // with read concern "majority"
	exact  *mongo.Collection // with read concern "linearizable", for single documents
	name   string            // for errors, without the URI's password
	closed atomic.Bool
}

// record is a document on the server. Its id is kind/key.
type record struct {
	ID      string      `bson:"_id"`
	Version int64       `bson:"version"`
	Data    bson.Binary `bson:"data"`
}

// fenceID is the id of Load's own record. The ids of documents have a slash.
const fenceID = "fence"

// movedID is the id of the record that Retire writes. A release that does not know it does not load
// the store.
const movedID = "moved"

// The collections of a role: documents of one process, and the two logs of replicas.
const (
	storePrefix  = "store."
	logPrefix    = "log."
	leasesPrefix = "leases."
)

var validRole = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,99}$`)

// Open connects to the server at uri and opens the store of a role, such as "root" or
// "cluster-berlin". Roles that share a database are independent; two processes with the same
// role get ErrConflict. Open fails with api.ErrUnavailable if no primary answers in time.
func Open(ctx context.Context, uri, role string) (*Store, error) {
	if !validRole.MatchString(role) {
		return nil, fmt.Errorf("open a store in MongoDB for role %q: it must match %s: %w", role, validRole, api.ErrInvalid)
	}
	parsed, err := connstring.ParseAndValidate(uri)
	if err != nil {
		return nil, fmt.Errorf("open a store in MongoDB: its URI: %w: %w", err, api.ErrInvalid)
	}
	database := cmp.Or(parsed.Database, DefaultDatabase)
	opts := options.Client().SetAppName("treeline/" + role).
		SetTimeout(operationTimeout).SetServerSelectionTimeout(selectionTimeout).
		ApplyURI(uri).
		SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: new(true)}).
		SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary())
	client, err := mongo.Connect(opts)
	if err != nil {
		return nil, fmt.Errorf("open a store in MongoDB: %w: %w", err, api.ErrInvalid)
	}
	collection := storePrefix + role
	s := &Store{
		client: client,
		docs:   client.Database(database).Collection(collection),
		exact:  client.Database(database).Collection(collection, options.Collection().SetReadConcern(readconcern.Linearizable())),
		name:   fmt.Sprintf("%s/%s.%s", strings.Join(parsed.Hosts, ","), database, collection),
	}
	if err := client.Ping(ctx, nil); err != nil {
		return nil, errors.Join(s.failed(ctx, "reach", err), s.Close())
	}
	return s, nil
}

// Save implements store.Store. Each document takes one round trip.
func (s *Store) Save(ctx context.Context, docs []store.Doc) error {
	if err := store.Validate(docs); err != nil {
		return err
	}
	for i := range docs {
		if s.closed.Load() {
			return store.ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.save(ctx, docs[i:]); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// save writes docs[0]. It reads the stored document only if the write finds another version,
// which is rare.
func (s *Store) save(ctx context.Context, docs []store.Doc) error {
	d := docs[0]
	// Decide returns Write only if another process changed the document between write and stored:
	// write again.
	for range 3 {
		done, err := s.write(ctx, d)
		if err != nil {
			return s.failed(ctx, fmt.Sprintf("save %s %q to", d.Kind, d.Key), err)
		}
		if done {
			return nil
		}
		stored, err := s.stored(ctx, d)
		if err != nil {
			return err
		}
		switch store.Decide(stored, docs) {
		case store.Repeat:
			return nil
		case store.Refuse:
			return store.Conflict(d, stored.Version)
		case store.Write:
		}
	}
	return fmt.Errorf("save %s %q version %d: another process keeps changing it: %w", d.Kind, d.Key, d.Version, store.ErrConflict)
}

// write writes d if the version before it is stored; else done is false.
func (s *Store) write(ctx context.Context, d store.Doc) (done bool, err error) {
	before := bson.D{{Key: "_id", Value: id(d)}, {Key: "version", Value: int64(d.Version - 1)}}
	data := bson.Binary{Data: d.Data}
	switch {
	case d.Data == nil:
		result, err := s.docs.DeleteOne(ctx, before)
		return err == nil && result.DeletedCount == 1, err
	case d.Version == 1:
		_, err := s.docs.InsertOne(ctx, record{id(d), 1, data})
		if mongo.IsDuplicateKeyError(err) {
			return false, nil
		}
		return err == nil, err
	default:
		change := bson.D{{Key: "version", Value: int64(d.Version)}, {Key: "data", Value: data}}
		result, err := s.docs.UpdateOne(ctx, before, bson.D{{Key: "$set", Value: change}})
		return err == nil && result.MatchedCount == 1, err
	}
}

// stored returns the document under d's key. The read is linearizable, because Save must not
// acknowledge a repeat that the primary may still lose.
func (s *Store) stored(ctx context.Context, d store.Doc) (store.Doc, error) {
	var r record
	err := s.exact.FindOne(ctx, bson.D{{Key: "_id", Value: id(d)}}).Decode(&r)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return store.Doc{}, nil
	}
	if err != nil {
		return store.Doc{}, s.failed(ctx, fmt.Sprintf("read %s %q from", d.Kind, d.Key), err)
	}
	return s.doc(r)
}

// Load implements store.Store. It first writes a record of its own: once a majority has that
// record, the primary has all earlier acknowledged writes, even if it was just elected.
func (s *Store) Load(ctx context.Context, fn func(store.Doc) error) error {
	return s.load(ctx, fn, func() error {
		return fmt.Errorf("load %s: its documents were moved to the store that replicas share: set replica: %w", s.name, api.ErrConflict)
	})
}

// Retire makes later Loads fail, because the documents are moved to a log of replicas, and calls fn
// with every document. It may be repeated. A process that has loaded the store before must have ended.
func (s *Store) Retire(ctx context.Context, fn func(store.Doc) error) error {
	_, err := s.docs.InsertOne(ctx, bson.D{{Key: "_id", Value: movedID}, {Key: "version", Value: "log"}})
	if err != nil && !mongo.IsDuplicateKeyError(err) {
		return s.failed(ctx, "retire", err)
	}
	return s.load(ctx, fn, func() error { return nil })
}

// load calls fn with the documents, and moved if they were moved.
func (s *Store) load(ctx context.Context, fn func(store.Doc) error, moved func() error) error {
	if s.closed.Load() {
		return store.ErrClosed
	}
	fence := bson.D{{Key: "$inc", Value: bson.D{{Key: "version", Value: int64(1)}}}}
	_, err := s.docs.UpdateOne(ctx, bson.D{{Key: "_id", Value: fenceID}}, fence, options.UpdateOne().SetUpsert(true))
	if err != nil {
		return s.failed(ctx, "load", err)
	}
	cursor, err := s.docs.Find(ctx, bson.D{})
	if err != nil {
		return s.failed(ctx, "load", err)
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	for cursor.Next(ctx) {
		id, _ := cursor.Current.Lookup("_id").StringValueOK()
		if id == movedID {
			if err := moved(); err != nil {
				return err
			}
		}
		if id == movedID || id == fenceID {
			continue
		}
		var r record
		if err := cursor.Decode(&r); err != nil {
			return s.corrupt(fmt.Sprint(cursor.Current.Lookup("_id")), err)
		}
		d, err := s.doc(r)
		if err != nil {
			return err
		}
		if err := fn(d); err != nil {
			return err
		}
	}
	if err := cursor.Err(); err != nil {
		return s.failed(ctx, "load", err)
	}
	return nil
}

// Unused returns ErrConflict if the database has something of the store's role: documents, or the logs of
// replicas.
func (s *Store) Unused(ctx context.Context) error {
	role := strings.TrimPrefix(s.docs.Name(), storePrefix)
	for _, prefix := range []string{storePrefix, logPrefix, leasesPrefix} {
		err := s.in(prefix+role).docs.FindOne(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$ne", Value: fenceID}}}}).Err()
		if err == nil {
			return fmt.Errorf("%s is in use: the collection %s%s has documents; use another database, or drop its collections if nothing needs them: %w",
				strings.TrimSuffix(s.name, "."+s.docs.Name()), prefix, role, api.ErrConflict)
		}
		if !errors.Is(err, mongo.ErrNoDocuments) {
			return s.failed(ctx, "read", err)
		}
	}
	return nil
}

func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := s.client.Disconnect(ctx); err != nil {
		return fmt.Errorf("close %s: %w", s.name, err)
	}
	return nil
}

func id(d store.Doc) string {
	return d.Kind + "/" + d.Key
}

// doc returns the document of a record, validated.
func (s *Store) doc(r record) (store.Doc, error) {
	kind, key, _ := strings.Cut(r.ID, "/")
	d := store.Doc{Kind: kind, Key: key, Version: uint64(r.Version), Data: r.Data.Data}
	if d.Data == nil {
		d.Data = []byte{} // nil would mean a deletion
	}
	if err := store.Validate([]store.Doc{d}); err != nil {
		return store.Doc{}, s.corrupt(r.ID, err)
	}
	return d, nil
}

func (s *Store) corrupt(id string, err error) error {
	return fmt.Errorf("%w: the record %q in %s: %w; it was not changed: restore the collection from a backup", store.ErrCorrupt, id, s.name, err)
}

// Errors of a server whose disk is full: MongoDB's code, and the text of SQLite in FerretDB.
const (
	codeOutOfDiskSpace = 14031
	textDiskFull       = "database or disk is full"
)

// failed translates an error of the driver.
func (s *Store) failed(ctx context.Context, verb string, err error) error {
	var server mongo.ServerError
	switch {
	case s.closed.Load() || errors.Is(err, mongo.ErrClientDisconnected):
		return store.ErrClosed
	case ctx.Err() != nil:
		return fmt.Errorf("%s %s: %w", verb, s.name, ctx.Err())
	case errors.As(err, &server) && server.HasErrorCode(codeOutOfDiskSpace), strings.Contains(err.Error(), textDiskFull):
		return fmt.Errorf("%s %s: free some space on the server's disk: %w (%w)", verb, s.name, store.ErrFull, err)
	case errors.As(err, &server) && !server.HasErrorLabel("RetryableWriteError"):
		return fmt.Errorf("%s %s: %w", verb, s.name, err)
	}
	return fmt.Errorf("%s %s: %w: is the server up, and a primary elected? %w", verb, s.name, api.ErrUnavailable, err)
}
