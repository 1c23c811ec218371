package contexts

import (
	"fmt"
	"os"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Environment variables that say what flags say; flags go before them, and they
// go before the file.
const (
	EnvContext = "TREELINE_CONTEXT"
	EnvAddr    = "TREELINE_ADDR"
	EnvCA      = "TREELINE_CA"
	EnvToken   = "TREELINE_TOKEN"
	EnvTenant  = "TREELINE_TENANT"
)

// Wish is what the flags say; empty parts say nothing.
type Wish struct {
	Context, Addr, CA, Token string // CA is a file
	Tenant                   string
}

// Chosen is where a command goes and as whom.
type Chosen struct {
	Context
	Name  string // of the context; empty: none was needed
	Token string // to show instead of the session's
}

// Choose settles flags, environment and file, in this order. No address
// anywhere is ErrNotFound.
func Choose(all All, w Wish, env func(string) string) (Chosen, error) {
	wish := func(flag, key string) string {
		if flag != "" {
			return flag
		}
		return env(key)
	}
	addr, ca, token := wish(w.Addr, EnvAddr), wish(w.CA, EnvCA), wish(w.Token, EnvToken)
	c := Chosen{Name: wish(w.Context, EnvContext), Token: token}
	named := c.Name != ""
	if !named {
		c.Name = all.Current
	}
	var err error
	if c.Context, err = all.Get(c.Name); err != nil {
		if named || addr == "" {
			return Chosen{}, noContext(c.Name, err)
		}
		c.Name = ""
	}
	if addr != "" {
		c.URL = URL(addr)
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return Chosen{}, fmt.Errorf("read the CA to pin: %w: %w", err, api.ErrInvalid)
		}
		// A session goes to the installation that gave it and to no other: the
		// pinned CA says which one that is, not the address.
		if string(pem) != c.CA {
			c.Access, c.Refresh, c.Name = "", "", ""
		}
		c.CA = string(pem)
	} else if addr != "" && c.CA == "" && c.URL != all.Contexts[c.Name].URL {
		c.Access, c.Refresh, c.Name = "", "", ""
	}
	if t := wish(w.Tenant, EnvTenant); t != "" {
		c.Tenant = api.Tenant(t)
	}
	if c.Tenant != "" && !api.ValidTenant(c.Tenant) {
		return Chosen{}, fmt.Errorf("tenant %q is no path of lower-case names such as acme or acme/lab: %w", c.Tenant, api.ErrInvalid)
	}
	return c, nil
}

func noContext(name string, err error) error {
	if name == "" {
		return fmt.Errorf("nobody is signed in: run treeline login URL, or set %s and %s: %w", EnvAddr, EnvToken, api.ErrUnauthenticated)
	}
	return err
}

// URL completes an address that was written without a scheme.
func URL(addr string) string {
	if !strings.Contains(addr, "://") {
		addr = "https://" + addr
	}
	return strings.TrimSuffix(addr, "/")
}
