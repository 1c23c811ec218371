package contexts

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Environment variables. Flags override them, and they override the file.
const (
	EnvContext = "TREELINE_CONTEXT"
	EnvAddr    = "TREELINE_ADDR"
	EnvCA      = "TREELINE_CA"
	EnvToken   = "TREELINE_TOKEN"
	EnvTenant  = "TREELINE_TENANT"
)

// Flags has the values of flags; empty: not given.
type Flags struct {
	Context, Addr, CA, Token string // CA is the path of a file
	Tenant                   string
}

// Chosen is the root and the credentials that a command uses.
type Chosen struct {
	Context
	Name  string // name of the context; empty: none is used
	Token string // used instead of the session
}

// Choose combines flags, environment and file, in this order of precedence. A session is used only
// with the installation that issued it. ErrUnauthenticated: no address is given; ErrNotFound: the
// given context does not exist; ErrInvalid: the CA file cannot be read, or the tenant is invalid.
func Choose(all All, f Flags, env func(string) string) (Chosen, error) {
	addr, ca := cmp.Or(f.Addr, env(EnvAddr)), cmp.Or(f.CA, env(EnvCA))
	c := Chosen{Name: cmp.Or(f.Context, env(EnvContext)), Token: cmp.Or(f.Token, env(EnvToken))}
	named := c.Name != ""
	if !named {
		c.Name = all.Current
	}
	var err error
	if c.Context, err = all.Get(c.Name); err != nil {
		switch {
		case named, addr == "" && c.Name != "":
			return Chosen{}, err
		case addr == "":
			return Chosen{}, fmt.Errorf("not signed in: run treeline login URL, or set %s and %s: %w", EnvAddr, EnvToken, api.ErrUnauthenticated)
		}
		c.Name = ""
	}
	if addr != "" {
		c.URL, c.Replicas = URL(addr), nil
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return Chosen{}, fmt.Errorf("read the CA file: %w: %w", err, api.ErrInvalid)
		}
		// The pinned CA, not the address, identifies the installation of the session.
		if !pins(c.CA, string(pem)) {
			c.Access, c.Refresh, c.Name, c.Cluster, c.Replicas = "", "", "", "", nil
		}
		c.CA = string(pem)
	} else if addr != "" && c.CA == "" && c.URL != all.Contexts[c.Name].URL {
		c.Access, c.Refresh, c.Name, c.Cluster = "", "", "", ""
	}
	c.Tenant = cmp.Or(api.Tenant(f.Tenant), api.Tenant(env(EnvTenant)), c.Tenant)
	if c.Tenant != "" && !api.ValidTenant(c.Tenant) {
		return Chosen{}, fmt.Errorf("tenant %q: want a path of lower-case names such as acme or acme/lab: %w", c.Tenant, api.ErrInvalid)
	}
	return c, nil
}

// pins reports whether the CAs of a context are those in a file, or have followed them when the root's key was replaced.
func pins(all, file string) bool {
	file = strings.TrimSpace(file)
	return file == strings.TrimSpace(all) || file != "" && strings.Contains(all, file)
}

// URL adds https:// to an address without a scheme.
func URL(addr string) string {
	if !strings.Contains(addr, "://") {
		addr = "https://" + addr
	}
	return strings.TrimSuffix(addr, "/")
}
