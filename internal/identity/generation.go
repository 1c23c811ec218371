package identity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// Generation is the place of a cluster's certificate authority in the sequence of its keys. The root
// puts it into the authority's certificate. The zero value is that of an authority whose key has never
// been replaced.
type Generation struct {
	Key    uint64 `json:"key,omitempty"`    // counts the keys that the cluster has had before this one
	Oldest uint64 `json:"oldest,omitempty"` // the keys before this one are retired
	// Root and RootOldest are the same of the root's key that has signed the certificate.
	Root       uint64 `json:"root,omitempty"`
	RootOldest uint64 `json:"root_oldest,omitempty"`
}

// Before reports whether g is older than o, by the cluster's key or by the root's.
func (g Generation) Before(o Generation) bool {
	return g.Key < o.Key || g.Key == o.Key && g.Oldest < o.Oldest || g.Root < o.Root || g.RootOldest < o.RootOldest
}

// Own returns g without the root's key.
func (g Generation) Own() Generation { return Generation{Key: g.Key, Oldest: g.Oldest} }

// generationOID identifies the extension. It was made from the random UUID
// aaa87aba-6dfa-4a08-b57a-b246a5060290, in the arc that Microsoft provides for identifiers without a registration.
var generationOID = asn1.ObjectIdentifier{1, 2, 840, 113556, 1, 8000, 2554, 43688, 31418, 28154, 18952, 46458, 11683493, 393872}

type generationText struct {
	Key, Oldest int64
	// Releases before the rotation of the root's key ignore what follows.
	Root       int64 `asn1:"optional"`
	RootOldest int64 `asn1:"optional"`
}

// Extension returns the extension with the generation for a certificate.
func (g Generation) Extension() (pkix.Extension, error) {
	der, err := asn1.Marshal(generationText{int64(g.Key), int64(g.Oldest), int64(g.Root), int64(g.RootOldest)})
	if err != nil {
		return pkix.Extension{}, fmt.Errorf("encode the generation of an authority: %w", err)
	}
	return pkix.Extension{Id: generationOID, Value: der}, nil
}

// GenerationOf returns the generation in the certificate of an authority, which the caller
// has verified. In that of the root, Key and Oldest are of the root itself. It is zero if there is none, and fails with ErrUnauthenticated if it is malformed.
func GenerationOf(cert *x509.Certificate) (Generation, error) {
	for _, e := range cert.Extensions {
		if !e.Id.Equal(generationOID) {
			continue
		}
		var t generationText
		rest, err := asn1.Unmarshal(e.Value, &t)
		if err != nil || len(rest) > 0 || t.Key < t.Oldest || t.Oldest < 0 || t.Root < t.RootOldest || t.RootOldest < 0 {
			return Generation{}, fmt.Errorf("certificate of %q has a malformed generation: %w", cert.Subject.CommonName, api.ErrUnauthenticated)
		}
		return Generation{uint64(t.Key), uint64(t.Oldest), uint64(t.Root), uint64(t.RootOldest)}, nil
	}
	return Generation{}, nil
}
