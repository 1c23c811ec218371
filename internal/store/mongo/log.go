package mongo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/shared"
)

// log implements shared.Log in one collection. It inserts, reads and deletes only, because FerretDB's
// updates are not atomic.
type log struct {
	*Store       // its collection has the log's entries
	shares bool  // its connection is closed by another log
	scans  error // see Scans
}

func (l *log) Close() error {
	if l.shares {
		l.closed.Store(true)
		return nil
	}
	return l.Store.Close()
}

// entry is an entry on the server.
type entry struct {
	ID       string   `bson:"_id"` // the position in 20 digits, so that it sorts as a number
	Epoch    int64    `bson:"epoch,omitempty"`
	Takeover string   `bson:"takeover,omitempty"`
	Start    int64    `bson:"start,omitempty"`
	Docs     []change `bson:"docs,omitempty"`
	More     bool     `bson:"more,omitempty"`
}

type change struct {
	Kind    string      `bson:"kind"`
	Key     string      `bson:"key"`
	Version int64       `bson:"version"`
	Data    bson.Binary `bson:"data"`
	Deleted bool        `bson:"deleted,omitempty"`
}

// OpenLogs opens the log that the replicas of a role share, and that of their leases. It fails with
// shared.ErrNotAtomic if the server stores two documents with one id, and with api.ErrInvalid if uri
// demands less than writes to a majority. Close of the first one ends the connection.
func OpenLogs(ctx context.Context, uri, role string) (entries, leases shared.Log, err error) {
	if err := checkConcerns(uri); err != nil {
		return nil, nil, err
	}
	s, err := Open(ctx, uri, role)
	if err != nil {
		return nil, nil, err
	}
	scans, err := s.scans(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	in := func(prefix string, shares bool) *log { return &log{s.in(prefix + role), shares, scans} }
	if err := shared.Check(ctx, in("check.", true)); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("check whether replicas can share %s: %w", s.name, err), s.Close())
	}
	return in(logPrefix, false), in(leasesPrefix, true), nil
}

// indexed is the end of the version of FerretDB as scripts/ferretdb builds it.
const indexed = "-indexed"

// Scans returns an error that says why the server reads a whole collection for each document that it is asked for, or nil: FerretDB 1 does
// as it is published. A follower would take processor time from the active replica, and would never be current.
func Scans(l shared.Log) error {
	if l, ok := l.(*log); ok {
		return l.scans
	}
	return nil
}

// scans returns what Scans does.
func (s *Store) scans(ctx context.Context) (scans, err error) {
	var info struct {
		Ferret string `bson:"ferretdbVersion"` // only FerretDB has it
	}
	if err := s.docs.Database().RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info); err != nil {
		return nil, s.failed(ctx, "read the version of", err)
	}
	return scansAs(info.Ferret), nil
}

// scansAs returns what Scans does for a version of FerretDB; empty: the server is another one.
func scansAs(version string) error {
	if !strings.HasPrefix(version, "v1.") || strings.HasSuffix(version, indexed) {
		return nil
	}
	return fmt.Errorf("FerretDB %s reads the whole collection for each document; use MongoDB, or build FerretDB with scripts/ferretdb", version)
}

// in returns the store with another collection and the same connection.
func (s *Store) in(collection string) *Store {
	db := s.docs.Database()
	return &Store{
		client: s.client,
		docs:   db.Collection(collection),
		exact:  db.Collection(collection, options.Collection().SetReadConcern(readconcern.Linearizable())),
		name:   strings.TrimSuffix(s.name, s.docs.Name()) + collection,
	}
}

// checkConcerns fails if uri demands guarantees that are too weak for replicas. Open sets the right
// ones, but the administrator would think that the others count.
func checkConcerns(uri string) error {
	parsed, err := connstring.ParseAndValidate(uri)
	if err != nil {
		return fmt.Errorf("open a store in MongoDB: its URI: %w: %w", err, api.ErrInvalid)
	}
	weak := ""
	switch {
	case parsed.WNumberSet || parsed.WString != "" && parsed.WString != "majority":
		weak = "w"
	case parsed.JSet && !parsed.J:
		weak = "journal"
	case parsed.ReadConcernLevel != "" && parsed.ReadConcernLevel != "majority" && parsed.ReadConcernLevel != "linearizable":
		weak = "readConcernLevel"
	case parsed.ReadPreference != "" && parsed.ReadPreference != "primary":
		weak = "readPreference"
	default:
		return nil
	}
	return fmt.Errorf("open a store in MongoDB for replicas: the option %s in its URI would lose acknowledged writes: leave it out; "+
		"replicas need w=majority, journal=true, readConcernLevel=majority and readPreference=primary, which are set: %w", weak, api.ErrInvalid)
}

func position(p uint64) string { return fmt.Sprintf("%020d", p) }

func encode(e shared.Entry) entry {
	out := entry{ID: position(e.Position), Epoch: int64(e.Epoch), Takeover: e.Takeover, Start: int64(e.Start), More: e.More}
	for _, d := range e.Docs {
		out.Docs = append(out.Docs, change{d.Kind, d.Key, int64(d.Version), bson.Binary{Data: d.Data}, d.Data == nil})
	}
	return out
}

func (l *log) decode(in entry) (shared.Entry, error) {
	e := shared.Entry{Epoch: uint64(in.Epoch), Takeover: in.Takeover, Start: uint64(in.Start), More: in.More}
	if _, err := fmt.Sscanf(in.ID, "%d", &e.Position); err != nil || position(e.Position) != in.ID {
		return e, l.corrupt(in.ID, errors.New("its id is not a position"))
	}
	for _, c := range in.Docs {
		d := store.Doc{Kind: c.Kind, Key: c.Key, Version: uint64(c.Version), Data: c.Data.Data}
		switch {
		case c.Deleted:
			d.Data = nil
		case d.Data == nil:
			d.Data = []byte{}
		}
		e.Docs = append(e.Docs, d)
	}
	if err := store.Validate(e.Docs); err != nil {
		return e, l.corrupt(in.ID, err)
	}
	return e, nil
}

// Append implements shared.Log: the ids of a collection are unique.
func (l *log) Append(ctx context.Context, e shared.Entry) (taken bool, err error) {
	if l.closed.Load() {
		return false, store.ErrClosed
	}
	_, err = l.docs.InsertOne(ctx, encode(e))
	if mongo.IsDuplicateKeyError(err) {
		return true, nil
	}
	if err != nil {
		return false, l.failed(ctx, fmt.Sprintf("append entry %d to", e.Position), err)
	}
	return false, nil
}

// At implements shared.Log. An entry never changes, so that one which a majority has is right, and only
// that there is none has to be read from a primary that proves to be one, which takes longer. The driver goes back to no
// earlier primary, so that what it reads afterwards is not older than that.
func (l *log) At(ctx context.Context, p uint64) (shared.Entry, bool, error) {
	if l.closed.Load() {
		return shared.Entry{}, false, store.ErrClosed
	}
	var in entry
	id := bson.D{{Key: "_id", Value: position(p)}}
	err := l.docs.FindOne(ctx, id).Decode(&in)
	if errors.Is(err, mongo.ErrNoDocuments) {
		err = l.exact.FindOne(ctx, id).Decode(&in)
	}
	if errors.Is(err, mongo.ErrNoDocuments) {
		return shared.Entry{}, false, nil
	}
	if err != nil {
		return shared.Entry{}, false, l.failed(ctx, fmt.Sprintf("read entry %d from", p), err)
	}
	e, err := l.decode(in)
	return e, err == nil, err
}

// answerBytes is the size of documents above which Next returns no further entry.
const answerBytes = 1 << 20

// Next implements shared.Log. It names each entry, because FerretDB as scripts/ferretdb builds it uses its index only for ids.
func (l *log) Next(ctx context.Context, from uint64, n int) (all []shared.Entry, err error) {
	if l.closed.Load() {
		return nil, store.ErrClosed
	}
	ids := make(bson.A, n)
	for i := range ids {
		ids[i] = position(from + uint64(i))
	}
	cursor, err := l.docs.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, l.failed(ctx, fmt.Sprintf("read entries from %d on from", from), err)
	}
	bytes := 0
	err = l.each(ctx, cursor, func(e shared.Entry) error {
		if e.Position != from+uint64(len(all)) || bytes > answerBytes {
			return errEnough
		}
		for _, d := range e.Docs {
			bytes += len(d.Data)
		}
		all = append(all, e)
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	return all, nil
}

// errEnough ends each.
var errEnough = errors.New("enough entries were read")

// Entries implements shared.Log. A primary that sees an entry sees all that were durable before it.
func (l *log) Entries(ctx context.Context, fn func(shared.Entry) error) error {
	if l.closed.Load() {
		return store.ErrClosed
	}
	cursor, err := l.docs.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return l.failed(ctx, "read", err)
	}
	return l.each(ctx, cursor, fn)
}

// each calls fn with each entry that a query has found, and closes its cursor.
func (l *log) each(ctx context.Context, cursor *mongo.Cursor, fn func(shared.Entry) error) error {
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	for cursor.Next(ctx) {
		var in entry
		if err := cursor.Decode(&in); err != nil {
			return l.corrupt(fmt.Sprint(cursor.Current.Lookup("_id")), err)
		}
		e, err := l.decode(in)
		if err != nil {
			return err
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	if err := cursor.Err(); err != nil {
		return l.failed(ctx, "read", err)
	}
	return nil
}

// Delete implements shared.Log. Each entry is named by its id alone, because FerretDB reads the whole
// collection for all other filters, which would delay writes by seconds.
func (l *log) Delete(ctx context.Context, positions ...uint64) error {
	if l.closed.Load() {
		return store.ErrClosed
	}
	if len(positions) == 0 {
		return nil
	}
	var each []mongo.WriteModel
	for _, p := range positions {
		each = append(each, mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: "_id", Value: position(p)}}))
	}
	if _, err := l.docs.BulkWrite(ctx, each); err != nil {
		return l.failed(ctx, "delete entries of", err)
	}
	return nil
}
