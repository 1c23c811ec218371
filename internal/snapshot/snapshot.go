// Package snapshot is the format of snapshots of a control plane: one file with all documents of a store and
// the keys of its daemon. It begins with a line and a header in JSON, in the clear. The rest is a tar archive,
// compressed with gzip and encrypted with age.
//
//	taker := snapshot.NewTaker(snapshot.Options{…})      // in the daemon
//	file, err := taker.Take(ctx, recipients)
//	_, err = io.Copy(w, file)
//
//	r, err := snapshot.Open(file)                        // in the CLI
//	r.Header()
//	err = r.Content(identities, onKey, onDoc)
package snapshot

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/treeline-edge/treeline/api"
)

// Format is the version of the format that this release writes. It reads this one only.
const Format = 1

// magic begins a snapshot.
const magic = "treeline snapshot\n"

// MediaType is the type of a snapshot in HTTP.
const MediaType = "application/vnd.treeline.snapshot"

// The tiers of a snapshot.
const (
	Root    = "root"
	Cluster = "cluster"
)

// The bounds of what is read of a snapshot, which anybody may have made.
const (
	MaxRecipients = 8
	maxHeader     = 16 << 10
	maxKeyFile    = 1 << 20  // bytes of a key file
	maxDocs       = 8 << 20  // documents
	maxBytes      = 32 << 30 // of their data
	maxSealed     = 64 << 10 // of the header of age
	perEntry      = 4 << 10  // of the archive's own data
)

// Header says what a snapshot is of. It is in the clear, and repeated in the encrypted part without Size and
// SHA256.
type Header struct {
	Format    int       `json:"format"`
	Version   string    `json:"version"`           // of the daemon
	Tier      string    `json:"tier"`              // Root or Cluster
	Cluster   string    `json:"cluster,omitempty"` // its name
	Time      time.Time `json:"time"`
	Authority string    `json:"authority"`          // SHA-256 of the public key of the daemon's authority, hex
	Position  uint64    `json:"position,omitempty"` // in the log of a store that replicas share

	Recipients []string `json:"recipients"`
	Keys       []string `json:"keys"` // names of the key files
	// Documents is the number of entries, and Bytes the size of the data in them: documents that changed
	// while the snapshot was taken are in it twice.
	Documents int   `json:"documents"`
	Bytes     int64 `json:"bytes"`

	Size   int64  `json:"size,omitempty"`   // of the encrypted part
	SHA256 string `json:"sha256,omitempty"` // of the encrypted part, hex
}

// inner returns the header as it is in the encrypted part.
func (h Header) inner() Header {
	h.Size, h.SHA256 = 0, ""
	return h
}

// Of returns what the snapshot is of, such as "cluster munich".
func (h Header) Of() string { return strings.TrimSpace(h.Tier + " " + h.Cluster) }

// FileName returns a name for the file of the snapshot, which sorts by its time.
func (h Header) FileName() string {
	return strings.ReplaceAll(h.Of(), " ", "-") + "-" + h.Time.UTC().Format(fileTime) + fileSuffix
}

// The end of a file name.
const (
	fileTime   = "20060102T150405Z"
	fileSuffix = ".snapshot"
)

// Same reports whether two headers are equal.
func (h Header) Same(o Header) bool {
	a, b := h, o
	a.Recipients, b.Recipients, a.Keys, b.Keys, a.Time, b.Time = nil, nil, nil, nil, time.Time{}, time.Time{}
	return fmt.Sprint(a) == fmt.Sprint(b) && slices.Equal(h.Recipients, o.Recipients) && slices.Equal(h.Keys, o.Keys) && h.Time.Equal(o.Time)
}

// KeyFiles are the key files of a tier; only the first one must exist.
func KeyFiles(tier string) []string {
	switch tier {
	case Root:
		return []string{"root-ca.pem", "token-keys.json", "secrets.key"}
	case Cluster:
		return []string{"cluster-ca.pem", "cluster.json", "operator-token", "secrets.key"}
	}
	return nil
}

// Recipients parses X25519 recipients, age1…. Errors: ErrInvalid.
func Recipients(texts []string) ([]age.Recipient, error) {
	if len(texts) == 0 || len(texts) > MaxRecipients {
		return nil, fmt.Errorf("%d recipients, want 1 to %d of the form age1…: %w", len(texts), MaxRecipients, api.ErrInvalid)
	}
	var all []age.Recipient
	for _, t := range texts {
		r, err := age.ParseX25519Recipient(t)
		if err != nil {
			shown := fmt.Sprintf("%.80q", t)
			if strings.HasPrefix(strings.ToUpper(t), "AGE-SECRET-KEY") {
				shown = "given is an identity, which is secret, and"
			}
			return nil, fmt.Errorf("recipient %s is not an X25519 recipient of age, age1… (treeline snapshot keygen creates one): %w", shown, api.ErrInvalid)
		}
		all = append(all, r)
	}
	return all, nil
}

// The entries of the archive are key files (keys/<name>), documents (docs/<number>), and the header, which is
// last. Kind and key of a document are PAX records.
const (
	keyPrefix  = "keys/"
	docPrefix  = "docs/"
	headerName = "header.json"

	paxKind    = "TREELINE.kind"
	paxKey     = "TREELINE.key"
	paxAgain   = "TREELINE.again"   // the document may be in the archive before
	paxDeleted = "TREELINE.deleted" // and is deleted
)

// Doc is a document of a snapshot. If Again, one of the same kind and key may precede it, which it replaces, or
// deletes if its data is nil.
type Doc struct {
	Kind, Key string
	Data      []byte
	Again     bool
}

// Identity decrypts snapshots.
type Identity = age.Identity

// Identities parses a file of identities of age. Errors: ErrInvalid, without the text.
func Identities(text io.Reader) ([]Identity, error) {
	ids, err := age.ParseIdentities(io.LimitReader(text, 64<<10))
	if err != nil {
		return nil, fmt.Errorf("it has no identity of age, AGE-SECRET-KEY-1…: %w", api.ErrInvalid)
	}
	return ids, nil
}

// NewIdentity returns the text of a new identity, and its recipient.
func NewIdentity() (identity, recipient string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", fmt.Errorf("create an identity: %w", err)
	}
	return id.String(), id.Recipient().String(), nil
}

// Choose returns the recipients of a snapshot that somebody asks for: those asked for, or those that the daemon's
// configuration lists. If it lists any, no others are allowed. If not, only the person who holds the installation's
// own credentials, not a personal or named token, may choose them (own): the snapshot has keys, which outlive the
// token. Errors: ErrForbidden, ErrInvalid (none are given or configured).
func Choose(asked, configured []string, own bool) ([]string, error) {
	switch {
	case len(asked) == 0 && len(configured) == 0:
		return nil, fmt.Errorf("take a snapshot: give a recipient, age1…, or set snapshot.recipients in the daemon's configuration: %w", api.ErrInvalid)
	case len(asked) == 0:
		return configured, nil
	case len(configured) == 0 && !own:
		return nil, fmt.Errorf("take a snapshot: a personal or named token, or one for a cluster, may not choose the recipient: sign in with a password, use the operator's own token, or set snapshot.recipients in the daemon's configuration: %w", api.ErrForbidden)
	}
	for _, r := range asked {
		if len(configured) > 0 && !slices.Contains(configured, r) {
			return nil, fmt.Errorf("take a snapshot: recipient %.80q is not in snapshot.recipients of the daemon's configuration: %w", r, api.ErrForbidden)
		}
	}
	return asked, nil
}
