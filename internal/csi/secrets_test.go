package csi_test

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/csi"
	"github.com/treeline-edge/treeline/testbed/csidriver"
)

const driverName = "dirs.test.example"

type rig struct {
	*csi.Driver
	t       *testing.T
	file    string
	storage *csidriver.Storage
	server  *csidriver.Server
}

func newRig(t *testing.T) *rig {
	dir, err := os.MkdirTemp("", "csi-") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, file: filepath.Join(dir, "secrets.yaml"), storage: csidriver.NewStorage(csidriver.Options{Name: driverName, Dir: dir})}
	socket := filepath.Join(dir, "d.sock")
	if r.server, err = csidriver.Serve(socket, r.storage, "n1", nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.server.Close)
	if r.Driver, err = csi.Open(csi.Options{Name: driverName, Socket: socket, Secrets: r.file, Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Driver.Close)
	return r
}

func (r *rig) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) create(name string) (csi.Volume, error) {
	return r.Create(r.t.Context(), "acme", csi.NewVolume{Name: name, Bytes: 1 << 20})
}

// TestEachCallHasItsSecrets: those of its own in the file, otherwise those of all calls; a changed file counts
// at the next call.
func TestEachCallHasItsSecrets(t *testing.T) {
	r := newRig(t)
	for i, words := range [][2]string{{"first", "second"}, {"third", "fourth"}} {
		r.write("all: {password: " + words[0] + "}\nDeleteVolume: {password: " + words[1] + ", user: admin}\n")
		r.storage.Require(map[string]map[string]string{
			"CreateVolume": {"password": words[0]}, "ControllerPublishVolume": {"password": words[0]}, "ControllerUnpublishVolume": {"password": words[0]},
			"DeleteVolume": {"password": words[1], "user": "admin"},
		})
		v, err := r.create("data")
		if err != nil {
			t.Fatalf("version %d: create: %v", i, err)
		}
		if _, err := r.Attach(t.Context(), "acme", v, "n1", false); err != nil {
			t.Errorf("version %d: attach: %v", i, err)
		}
		if err := r.Detach(t.Context(), "acme", v.Handle, "n1"); err != nil {
			t.Errorf("version %d: detach: %v", i, err)
		}
		if err := r.Delete(t.Context(), "acme", v.Handle); err != nil {
			t.Errorf("version %d: delete: %v", i, err)
		}
	}
}

// TestNoAnswerContainsASecret: a driver writes secrets into errors and answers, also those that it got
// before they were changed.
func TestNoAnswerContainsASecret(t *testing.T) {
	const password = "corréct horse/battery"
	const key = "first line of the key\nsecond line of it"
	r := newRig(t)
	r.write("CreateVolume: {password: \"" + password + "\", key: \"first line of the key\\nsecond line of it\"}\n")
	r.server.Set("CreateVolume", csidriver.Fault{Code: codes.Internal, Echo: true})
	check := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "[secret]") {
			t.Fatalf("create: got %v, want an error with [secret]", err)
		}
		for _, word := range []string{password, "horse", "second line", base64.StdEncoding.EncodeToString([]byte(key))} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("the error contains %q: %v", word, err)
			}
		}
	}
	_, err := r.create("data")
	check(err)
	r.write("CreateVolume: {password: later}\n")
	r.server.Set("CreateVolume", csidriver.Fault{})
	r.storage.Require(map[string]map[string]string{"CreateVolume": {}}) // its error has what it got
	_, err = r.create("data")
	check(err)

	r.storage.Require(nil)
	_, err = r.Create(t.Context(), "acme", csi.NewVolume{Name: "data", Bytes: 1 << 20, Parameters: map[string]string{"note": "it is " + password}}) // becomes the context of the volume
	if !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), `one of its secrets, under the key "note"`) || strings.Contains(err.Error(), password) {
		t.Errorf("create with an answer that has a secret: got %v, want ErrInvalid", err)
	}
}

func TestUnreadableSecretsAreNamed(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		text, want string
		mode       os.FileMode
	}{
		"missing":           {"", "no such file", 0},
		"readable by all":   {"all: {password: hunter22}", "mode 0600", 0o644},
		"no map":            {"hunter22", "is not a map", 0o600},
		"a flat map":        {"password: hunter22", "is not a map", 0o600},
		"an unknown call":   {"CreateVolum: {password: hunter22}", "is not a map", 0o600},
		"a number":          {"all: {password: 2222222}", "numbers are quoted", 0o600},
		"no YAML":           {"all: {password: hunter22", "is not a map", 0o600},
		"too large":         {"all: {password: " + strings.Repeat("hunter22", 1<<15) + "}", "more than", 0o600},
		"too many of a map": {"all: {" + strings.Repeat("hunter22", 1) + ": x" + manyKeys(65) + "}", "at most 64", 0o600},
	} {
		_ = os.Remove(r.file)
		if c.mode != 0 {
			r.write(c.text)
			if err := os.Chmod(r.file, c.mode); err != nil {
				t.Fatal(err)
			}
		}
		_, err := r.create("data")
		if !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "csi_secrets") {
			t.Errorf("%s: got %v, want ErrUnavailable with %q", name, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), "2222") || strings.Contains(err.Error(), r.file)) {
			t.Errorf("%s: the error has the content or the path: %v", name, err)
		}
		if err := r.Check(t.Context()); err == nil {
			t.Errorf("%s: the driver counts as ready", name)
		}
	}
	if n := len(r.storage.Volumes()); n > 0 {
		t.Errorf("%d volumes were created without the secrets", n)
	}
}

func manyKeys(n int) (out string) {
	for i := range n {
		out += ", k" + strings.Repeat("x", i) + ": y"
	}
	return out
}

func TestFilesOfSecretsAreOfConfiguredDrivers(t *testing.T) {
	sockets := map[string]string{driverName: "/run/d.sock"}
	if got, err := csi.ParseSecrets([]string{driverName + "=/etc/x.yaml"}, sockets); err != nil || got[driverName] != "/etc/x.yaml" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, list := range [][]string{{"x"}, {driverName + "=relative.yaml"}, {"other.example=/etc/x.yaml"}, {driverName + "=/a", driverName + "=/b"}} {
		if _, err := csi.ParseSecrets(list, sockets); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%v: got %v, want ErrInvalid", list, err)
		}
	}
}
