package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// ValueRef names one version of a config or secret that an instance's files need. Its tenant is the
// instance's. Values themselves are requested over HTTPS and are in no other message.
type ValueRef struct {
	Kind    api.ValueKind `json:"kind"`
	Name    string        `json:"name"`
	Version uint64        `json:"version"`
	Digest  string        `json:"digest"` // Value.Digest
	// Registry is set for a secret of api.TypeRegistry, which is for the instance's image and not for
	// its files.
	Registry string `json:"registry,omitempty"`
}

func (r ValueRef) String() string { return fmt.Sprintf("%s %s version %d", r.Kind, r.Name, r.Version) }

// ValueKey is a ValueRef with its tenant.
type ValueKey struct {
	Tenant api.Tenant `json:"tenant"`
	ValueRef
}

func (k ValueKey) String() string { return string(k.Tenant) + "/" + k.ValueRef.String() }

// WantValue requests a value: POST /v1/cluster/value of the root and POST /v1/node/value of a
// cluster. The receiver answers only if the sender has an instance that names it.
type WantValue struct {
	Tenant  api.Tenant    `json:"tenant"`
	Kind    api.ValueKind `json:"kind"`
	Name    string        `json:"name"`
	Version uint64        `json:"version"`
}

// Want returns the request of a value.
func (k ValueKey) Want() WantValue {
	return WantValue{Tenant: k.Tenant, Kind: k.Kind, Name: k.Name, Version: k.Version}
}

// Names reports whether the request is for r of the tenant.
func (w WantValue) Names(t api.Tenant, r ValueRef) bool {
	return w.Tenant == t && w.Kind == r.Kind && w.Name == r.Name && w.Version == r.Version
}

// Value answers WantValue.
type Value struct {
	Salt []byte            `json:"salt"` // random for each version
	Data map[string][]byte `json:"data"`
}

// Digest returns a digest of the data that cannot be guessed without the salt.
func (v Value) Digest() string {
	h := hmac.New(sha256.New, v.Salt)
	for _, k := range slices.Sorted(maps.Keys(v.Data)) {
		fmt.Fprintf(h, "%d %d %s", len(k), len(v.Data[k]), k)
		h.Write(v.Data[k])
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:18])
}

// String hides the values from formatted output.
func (v Value) String() string { return fmt.Sprintf("%d hidden values", len(v.Data)) }

// GoString hides the values.
func (v Value) GoString() string { return v.String() }

// valuesDigest is the part of an Assignment's digest about its values, empty if its files need none.
// Accounts of registries are not part of it, because nodes and clusters of earlier releases get them
// and compute the digest without them; they place no service with files.
func valuesDigest(refs []ValueRef) string {
	var parts []string
	for _, r := range refs {
		if r.Registry == "" {
			parts = append(parts, fmt.Sprintf("%s %s %d %s", r.Kind, r.Name, r.Version, r.Digest))
		}
	}
	return strings.Join(parts, ",")
}
