// Package seal encrypts the values of configs and secrets at rest. Each value has a data key of its
// own, which a KeyWrapper wraps (envelope encryption in the format of age, age-encryption.org/v1).
//
//	w, err := seal.KeyFile(dir, "secrets.key", false)
//	s := seal.New(w)
//	sealed, err := s.Seal("secret/acme/db", value)
package seal

import (
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"filippo.io/age"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/wire"
)

// KeyWrapper encrypts data keys. It is the place of a key management service. Its methods are safe
// for concurrent use. Unwrap fails with age.ErrIncorrectIdentity if none of the stanzas is for its
// key. Wrapping may be repeated with the same data key.
type KeyWrapper interface {
	Wrap(dataKey []byte) ([]*age.Stanza, error)
	Unwrap(stanzas []*age.Stanza) (dataKey []byte, err error)
}

// file wraps with an X25519 key.
type file struct {
	*age.X25519Identity
	*age.X25519Recipient
}

func (f file) String() string   { return "key file" }
func (f file) GoString() string { return "key file" }

// KeyFile returns the wrapper of the key in a file of dir. It creates the file with mode 0600 if
// there is none; with exists that is ErrNotFound instead, because values are encrypted with the key
// that is missing. A file that others may read is ErrInvalid.
func KeyFile(dir *os.Root, name string, exists bool) (KeyWrapper, error) {
	at := fmt.Sprintf("key file %s in %s", name, dir.Name())
	info, err := dir.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && exists:
		return nil, fmt.Errorf("%s is missing, and the store has configs and secrets that are encrypted with it; restore it from a backup, or start once with new_secrets_key and replace all of them: %w", at, api.ErrNotFound)
	case errors.Is(err, fs.ErrNotExist):
		id, err := age.GenerateX25519Identity()
		if err != nil {
			return nil, fmt.Errorf("create %s: %w", at, err)
		}
		if err := ca.WriteFile(dir, name, []byte(id.String()+"\n"), 0o600); err != nil {
			return nil, err
		}
		return file{id, id.Recipient()}, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w", at, err)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s has mode %o and others may read it; chmod 600 it if nobody did: %w", at, info.Mode().Perm(), api.ErrInvalid)
	}
	text, err := dir.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	id, err := age.ParseX25519Identity(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s has no key: %w", at, api.ErrInvalid) // the cause may show the text
	}
	return file{id, id.Recipient()}, nil
}

// Derive returns a key of 32 bytes for another purpose than values, from the key in a file of dir, which exists.
func Derive(dir *os.Root, name, purpose string) ([]byte, error) {
	w, err := KeyFile(dir, name, true)
	if err != nil {
		return nil, err
	}
	f, ok := w.(file)
	if !ok {
		return nil, fmt.Errorf("derive a key for %s: %s has no key of its own: %w", purpose, name, api.ErrInvalid)
	}
	key, err := hkdf.Key(sha256.New, []byte(f.X25519Identity.String()), nil, "treeline "+purpose, 32)
	if err != nil {
		return nil, fmt.Errorf("derive a key for %s: %w", purpose, err)
	}
	return key, nil
}

// Sealer encrypts and decrypts values. It is safe for concurrent use.
type Sealer struct{ keys KeyWrapper }

// New returns a Sealer that wraps data keys with w.
func New(w KeyWrapper) *Sealer { return &Sealer{w} }

// envelope is what is encrypted. Label binds it to its document.
type envelope struct {
	Label string     `json:"label"`
	Value wire.Value `json:"value"`
}

// Salted returns the value with a new salt.
func Salted(data map[string][]byte) wire.Value {
	salt := make([]byte, 32)
	_, _ = rand.Read(salt) // never fails
	return wire.Value{Salt: salt, Data: data}
}

// Seal encrypts a value. Open needs the same label.
func (s *Sealer) Seal(label string, v wire.Value) ([]byte, error) {
	text, err := json.Marshal(envelope{label, v})
	if err != nil {
		return nil, fmt.Errorf("encrypt %s: %w", label, err)
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, s.keys)
	if err == nil {
		_, err = w.Write(text)
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("encrypt %s: %w", label, err)
	}
	return out.Bytes(), nil
}

// Open decrypts a value. It fails if the value was encrypted with another key or label, or was
// changed.
func (s *Sealer) Open(label string, sealed []byte) (wire.Value, error) {
	r, err := age.Decrypt(bytes.NewReader(sealed), s.keys)
	if err != nil {
		return wire.Value{}, fmt.Errorf("decrypt %s: %w", label, err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return wire.Value{}, fmt.Errorf("decrypt %s: %w", label, err)
	}
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		return wire.Value{}, fmt.Errorf("decrypt %s: its content is malformed: %w", label, api.ErrInvalid) // the cause may show it
	}
	if e.Label != label {
		return wire.Value{}, fmt.Errorf("decrypt %s: it is the value of another object: %w", label, api.ErrInvalid)
	}
	return e.Value, nil
}
