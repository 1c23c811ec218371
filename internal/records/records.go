// Package records describes the operations of an API that change something, so that the daemon can store
// who did what. An API starts a record before an operation, the operation may say more, and the API
// stores the text of what succeeded or was refused. A record never has bodies, secrets or tokens.
//
//	ctx, r := records.Start(ctx, records.Target("/v1/users/{id}", param))
//	records.Of(ctx, records.Object("user", "acme/bob")).Text = "roles Admin"
//	text := r.Describe("Create user", "acme/alice") // create user by acme/alice: roles Admin
package records

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
)

// Record is what an operation changed. It is for one request, and not safe for concurrent use.
type Record struct {
	Tenant api.Tenant // of the object
	Kind   string     // of the object, such as "user"
	Object string     // its name within the tenant
	Text   string     // what the name of the operation does not say
	By     string     // the user, of operations that begin without one, such as a sign-in
}

type key struct{}

// Start returns a context in which an operation completes the record.
func Start(ctx context.Context, r Record) (context.Context, *Record) {
	return context.WithValue(ctx, key{}, &r), &r
}

// Of sets the tenant, kind and object of the operation's record, and returns it. Without a record in ctx, it
// returns one that is not stored.
func Of(ctx context.Context, object Record) *Record {
	r, _ := ctx.Value(key{}).(*Record)
	if r == nil {
		r = &Record{}
	}
	r.Tenant, r.Kind, r.Object = object.Tenant, object.Kind, object.Object
	return r
}

// Object returns a record of the object with the id, whose tenant is the part before the last "/".
func Object(kind, id string) Record {
	i := strings.LastIndexByte(id, '/')
	return Record{Tenant: api.Tenant(id[:max(i, 0)]), Kind: kind, Object: id[i+1:]}
}

// Target returns a record of the object that a path identifies: the last parameter, whose kind is the segment
// before it. Without parameters, the kind is the last segment. param returns the value of a parameter.
func Target(path string, param func(name string) string) Record {
	segments := strings.Split(path, "/")
	for i := len(segments) - 1; i > 0; i-- {
		if name, ok := strings.CutPrefix(segments[i], "{"); ok {
			kind, segment := strings.TrimSuffix(segments[i-1], "s"), param(strings.TrimSuffix(name, "}"))
			return Object(kind, idOf(kind, segment))
		}
	}
	return Record{Kind: strings.TrimSuffix(segments[len(segments)-1], "s")}
}

func idOf(kind, segment string) string {
	switch kind {
	case "instance":
		return string(api.InstanceFromPath(segment))
	case "volume":
		return string(api.VolumeFromPath(segment))
	case "snapshot":
		return string(api.SnapshotFromPath(segment))
	}
	return api.FromPath(segment)
}

// Describe returns the text of a record: operation is its summary, by the user.
func (r *Record) Describe(operation, by string) string {
	text := verb(operation) + " by " + by
	if r.Text != "" {
		text += ": " + r.Text
	}
	return text
}

// Refusal returns the text of the record of an attempt that was refused. It quotes the object, which need not
// exist.
func (r *Record) Refusal(operation, by string) string {
	operation = verb(operation)
	if r.Object != "" {
		operation += fmt.Sprintf(" %.200q", strings.TrimPrefix(string(r.Tenant)+"/"+r.Object, "/"))
	}
	return "refused: " + operation + " by " + by
}

// verb returns the first part of a summary, such as "drain a node" for "Have the cluster drain a node, …".
func verb(summary string) string {
	summary = strings.TrimPrefix(summary, "Have the cluster ")
	if i := strings.IndexAny(summary, ",;"); i > 0 {
		summary = summary[:i]
	}
	return strings.ToLower(summary[:1]) + summary[1:]
}

const refusalBurst, refusalRate = 5, 1.0 / 60

var refusals = fairshare.RateBound("tenant; of each API", "5 records at once and 1 a minute of one person; others are not recorded",
	"person of the largest tenant", "TestRefusedAttemptsOfOnePersonAreBounded").
	Declare("people whose refused operations are recorded", 4096)

// Refusals limits how many refused attempts are recorded. It is safe for concurrent use.
type Refusals struct{ rates *fairshare.Rates }

func NewRefusals() *Refusals {
	return &Refusals{fairshare.NewRates(refusals, refusalRate, refusalBurst)}
}

// Allow reports whether an attempt of a user may be recorded.
func (r *Refusals) Allow(now time.Time, t api.Tenant, user string) bool {
	return r.rates.Allow(now, string(t.Top()), user) == nil
}
