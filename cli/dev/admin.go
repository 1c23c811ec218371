//go:build linux

package dev

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
)

// The installation's admin, who has a generated password.
const (
	admin        = "admin"
	passwordFile = "admin-password"
	signInFile   = "first-sign-in" // of the root
)

func (in *installation) ca() ([]byte, error) {
	ca, err := os.ReadFile(filepath.Join(in.dir("root"), "ca.pem"))
	if err != nil {
		return nil, fmt.Errorf("read the root's CA: %w", err)
	}
	return ca, nil
}

// signIn returns a client and a session of the admin. On the first start it redeems the one-use
// code that the root wrote for the first admin.
func (in *installation) signIn(ctx context.Context) (*client.Client, api.Session, error) {
	var s api.Session
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	ca, err := in.ca()
	if err != nil {
		return nil, s, err
	}
	url := "https://" + in.dial()
	open, err := client.New(client.Options{URL: url, CA: ca})
	if err != nil {
		return nil, s, err
	}
	defer open.Close()
	password, err := in.password()
	if err != nil {
		return nil, s, err
	}
	code, err := os.ReadFile(filepath.Join(in.dir("root"), signInFile))
	switch user, text, ok := strings.Cut(strings.TrimSpace(string(code)), " "); {
	case err == nil && ok:
		s, err = open.Redeem(ctx, api.Redeem{User: user, Code: text, Password: password})
		if errors.Is(err, api.ErrUnauthenticated) { // an earlier start ended after it redeemed the code
			s, err = open.Login(ctx, api.Login{User: admin, Password: password})
		}
	case errors.Is(err, fs.ErrNotExist):
		s, err = open.Login(ctx, api.Login{User: admin, Password: password})
	}
	if err != nil {
		return nil, s, fmt.Errorf("sign in as the installation's admin: %w", err)
	}
	// The client does not refresh the session, because the user's context does: a refresh token is
	// valid once.
	a, err := client.New(client.Options{URL: url, CA: ca, Tokens: client.Static(s.Access)})
	return a, s, err
}

func (in *installation) dial() string {
	text, err := os.ReadFile(filepath.Join(in.dir("root"), "address"))
	if err != nil {
		return in.listen("root")
	}
	return strings.TrimSpace(string(text))
}

func (in *installation) hasPassword() bool {
	_, err := os.Stat(filepath.Join(in.cfg.Data, passwordFile))
	return err == nil
}

// password returns the admin's password, which is generated once and stored in the data directory.
func (in *installation) password() (string, error) {
	path := filepath.Join(in.cfg.Data, passwordFile)
	text, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(text)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the admin's password: %w", err)
	}
	var b [24]byte
	_, _ = rand.Read(b[:])
	p := base64.RawURLEncoding.EncodeToString(b[:])
	if err := os.WriteFile(path, []byte(p+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("store the admin's password: %w", err)
	}
	return p, nil
}

func (in *installation) withdraw() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	a, _, err := in.signIn(ctx)
	if err != nil {
		return fmt.Errorf("delete the applications: %w", err)
	}
	defer a.Close()
	apps, rev, err := a.Apps(ctx, client.ListOptions{})
	if err != nil {
		return fmt.Errorf("delete the applications: %w", err)
	}
	left := map[string]bool{}
	for _, app := range apps {
		in.hooks.Step("(root) deleting %s", app.ID)
		if _, err := a.DeleteApp(ctx, app.ID, 0); err != nil && !errors.Is(err, api.ErrNotFound) {
			return fmt.Errorf("delete %s: %w", app.ID, err)
		}
		left[string(app.ID)] = true
	}
	if len(left) == 0 {
		return nil
	}
	for change, err := range client.Watch[api.App](ctx, a, client.Apps, client.WatchOptions{Since: rev}) {
		if err != nil {
			return fmt.Errorf("delete the applications: %w", err)
		}
		if change.Object == nil {
			delete(left, change.ID)
		}
		if len(left) == 0 {
			return nil
		}
	}
	return fmt.Errorf("%d applications have not stopped after %s; their data stays in %s: %w", len(left), startTime, in.cfg.Data, api.ErrTimeout)
}
