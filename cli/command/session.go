package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/contexts"
)

func (c *cli) loginCmd() *cobra.Command {
	var user, code, codeFile, pin, name string
	var stdin bool
	cmd := &cobra.Command{
		Use: "login [URL]", Short: "Sign in, and keep the session in a context", Args: cobra.MaximumNArgs(1),
		Long: `Sign in, and keep the session in a context. The password is asked for, or read
from stdin with --password-stdin, and never kept.

The first sign-in with a one-use code sets the password. With --code-file - the code
is asked for, or is the first line of stdin. The root's CA is pinned then: by
--ca FILE, or by --pin with the hash that the root prints; without either, the
machine's own CAs are trusted.`,
		Example: `  treeline login https://10.0.0.5:7443 --user admin --code-file - --ca ca.pem
  treeline login --user acme/alice`,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := c.file().Load()
			if err != nil {
				return err
			}
			at, name, err := c.loginContext(cmd.Context(), all, args, name, pin)
			if err != nil {
				return err
			}
			if user == "" {
				user = at.User
			}
			if user == "" {
				return usage("who signs in? --user acme/alice")
			}
			if code != "" {
				c.sayVisible("--code", "--code-file FILE, or - to be asked")
			}
			if codeFile != "" {
				if code, err = c.secret("--code-file", codeFile, "one-use code of "+user+": "); err != nil {
					return err
				}
			}
			s, err := c.signIn(cmd.Context(), at, user, code, stdin)
			if err != nil {
				return err
			}
			at.SetSession(s)
			if c.wish.Tenant != "" {
				at.Tenant = api.Tenant(c.wish.Tenant)
			}
			err = c.file().Update(func(all *contexts.All) error {
				all.Contexts[name], all.Current = at, name
				return nil
			})
			if err != nil {
				return err
			}
			c.say("signed in as %s (%s) at %s; context %s", s.User, strings.Join(s.Roles, ", "), at.URL, name)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&user, "user", "", "who signs in: acme/alice, or admin")
	f.StringVar(&codeFile, "code-file", "", "file whose first line ends with the one-use sign-in code, which sets a new password; - asks, or reads stdin")
	f.StringVar(&code, "code", "", "the code itself, which other users of this machine see")
	_ = f.MarkHidden("code")
	cmd.MarkFlagsMutuallyExclusive("code", "code-file")
	f.StringVar(&pin, "pin", "", "SHA-256 of the root's CA certificate, to pin it")
	f.StringVar(&name, "name", "", "context to keep it in (default: the one of this address, else the address)")
	f.BoolVar(&stdin, "password-stdin", false, "read the password from stdin")
	return cmd
}

// loginContext is the context to sign in to: one that is there, or a new one.
func (c *cli) loginContext(ctx context.Context, all contexts.All, args []string, name, pin string) (contexts.Context, string, error) {
	addr := c.wish.Addr
	if len(args) > 0 {
		addr = args[0]
	}
	if addr == "" {
		w, err := c.where()
		if err != nil || w.Name == "" {
			return contexts.Context{}, "", usage("where to? treeline login URL")
		}
		return w.Context, w.Name, nil
	}
	at := contexts.Context{URL: contexts.URL(addr)}
	if name == "" {
		name = c.wish.Context
	}
	for _, n := range all.Names() {
		if name == "" && all.Contexts[n].URL == at.URL {
			name = n
		}
	}
	if name == "" {
		if u, err := url.Parse(at.URL); err == nil {
			name = u.Host
		}
	}
	if old, ok := all.Contexts[name]; ok && old.URL == at.URL {
		at = old
	}
	switch {
	case c.wish.CA != "":
		pem, err := os.ReadFile(c.wish.CA)
		if err != nil {
			return at, name, usage("--ca: %v", err)
		}
		at.CA = string(pem)
	case pin != "":
		pem, err := client.FetchCA(ctx, at.URL, pin)
		if err != nil {
			return at, name, err
		}
		at.CA = string(pem)
	}
	return at, name, nil
}

func (c *cli) signIn(ctx context.Context, at contexts.Context, user, code string, stdin bool) (api.Session, error) {
	a, err := client.New(client.Options{URL: at.URL, CA: []byte(at.CA)})
	if err != nil {
		return api.Session{}, err
	}
	defer a.Close()
	password, err := c.password(user, code != "", stdin)
	if err != nil {
		return api.Session{}, err
	}
	if code != "" {
		return a.Redeem(ctx, api.Redeem{User: user, Code: code, Password: password})
	}
	return a.Login(ctx, api.Login{User: user, Password: password})
}

// maxSecret bounds the first line of a file with a secret, in bytes.
const maxSecret = 64 << 10

// secret is the last word of the first line of a file. For "-" a person is asked for
// it, unseen; without one it is read from stdin.
func (c *cli) secret(flag, file, prompt string) (string, error) {
	var line string
	var err error
	switch {
	case file != "-":
		f, ferr := os.Open(file)
		if ferr != nil {
			return "", usage("%s: %v", flag, ferr)
		}
		defer f.Close()
		line, err = bufio.NewReader(io.LimitReader(f, maxSecret)).ReadString('\n')
	case c.InTTY && c.Secret != nil:
		line, err = c.Secret(prompt)
	default:
		line, err = c.line()
	}
	words := strings.Fields(line)
	if len(words) == 0 {
		return "", usage("%s %s: its first line is empty (%v)", flag, file, err)
	}
	return words[len(words)-1], nil
}

// line is the next line of stdin, without its end.
func (c *cli) line() (string, error) {
	if c.lines == nil {
		c.lines = bufio.NewReader(c.In)
	}
	line, err := c.lines.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

// sayVisible warns of a secret in the arguments.
func (c *cli) sayVisible(flag, better string) {
	c.say("warning: other users of this machine can see the value of %s; use %s", flag, better)
}

func (c *cli) password(user string, fresh, stdin bool) (string, error) {
	if stdin {
		line, err := c.line()
		if line == "" {
			return "", usage("--password-stdin: stdin has no password (%v)", err)
		}
		return line, nil
	}
	if !c.InTTY || c.Secret == nil {
		return "", usage("nobody can be asked for the password; use --password-stdin")
	}
	if !fresh {
		return c.Secret("password of " + user + ": ")
	}
	first, err := c.Secret("new password for " + user + ": ")
	if err != nil {
		return "", err
	}
	again, err := c.Secret("once more: ")
	if err == nil && first != again {
		err = usage("the two passwords differ")
	}
	return first, err
}

func (c *cli) logoutCmd() *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "End the context's session", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, err := c.where()
			if err != nil {
				return err
			}
			if w.Name == "" || !w.SignedIn() {
				return fmt.Errorf("nobody is signed in: %w", api.ErrUnauthenticated)
			}
			a, err := c.api()
			if err != nil {
				return err
			}
			var ended error
			err = c.file().Update(func(all *contexts.All) error {
				at, err := all.Get(w.Name)
				if err != nil {
					return err
				}
				ended = a.Logout(cmd.Context(), at.Refresh)
				at.SetSession(api.Session{})
				all.Contexts[w.Name] = at
				return nil
			})
			if err != nil {
				return err
			}
			if ended != nil && !errors.Is(ended, api.ErrUnauthenticated) {
				return fmt.Errorf("the session is forgotten here, but the root could not be told to end it: %w", ended)
			}
			c.say("signed out of context %s", w.Name)
			return nil
		},
	}
}

func (c *cli) whoamiCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "whoami", Short: "Show who is signed in, and where", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			a, err := c.api()
			if err != nil {
				return err
			}
			me, err := a.WhoAmI(cmd.Context())
			if err != nil {
				return err
			}
			if !p.ForPeople() {
				if p.Format == "name" {
					p.Printf("%s", me.User)
					return nil
				}
				return p.Object(me)
			}
			tenant := string(me.Tenant)
			if tenant == "" {
				tenant = "the system"
			}
			p.Printf("%s, %s in %s, at %s", me.User, strings.Join(me.Roles, " and "), tenant, a.URL())
			return nil
		},
	}
	c.outputFlags(cmd)
	return cmd
}
