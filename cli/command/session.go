package command

import (
	"bufio"
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/contexts"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) loginCmd() *cobra.Command {
	var user, code, codeFile, pin, name, cluster string
	var stdin bool
	cmd := &cobra.Command{
		Use: "login [URL]", Short: "Sign in, and save the session in a context", Args: cobra.MaximumNArgs(1),
		Long: `Sign in, and save the session in a context. The password is read from the terminal,
or with --password-stdin from stdin. It is not saved.

A first sign-in uses a one-use code and sets the password. --code-file - reads the
code from the terminal, or else from the first line of stdin. --ca FILE, or --pin
with the hash that the root prints, pins the root's CA. Without either flag, the
CAs that this system trusts are used.

With --cluster, the context is of a cluster's own port, so that its operator can work
while the root is away. The token is in operator-token in the cluster's data directory.
The cluster serves commands about nodes, and logs, exec and the like of instances.`,
		Example: `  treeline login https://10.0.0.5:7443 --user admin --code-file - --ca ca.pem
  treeline login --user acme/alice
  treeline login https://10.0.0.6:7444 --cluster munich --token-file operator-token`,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := c.file().Load()
			if err != nil {
				return err
			}
			if cluster != "" {
				return c.loginCluster(cmd.Context(), all, args, name, cluster, pin)
			}
			at, name, err := c.loginContext(cmd.Context(), all, args, name, pin)
			if err != nil {
				return err
			}
			user = cmp.Or(user, at.User)
			if user == "" {
				return usage("give the user who signs in, such as --user acme/alice")
			}
			if code != "" {
				c.warnVisible("--code", "--code-file FILE, or - for the terminal")
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
			if c.flags.Tenant != "" {
				at.Tenant = api.Tenant(c.flags.Tenant)
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
	f.StringVar(&user, "user", "", "user to sign in as: acme/alice, or admin")
	f.StringVar(&codeFile, "code-file", "", "file whose first line ends with the one-use code that sets a new password; - reads the terminal or stdin")
	f.StringVar(&code, "code", "", "the code itself, which other users of this machine can see")
	_ = f.MarkHidden("code")
	cmd.MarkFlagsMutuallyExclusive("code", "code-file")
	f.StringVar(&pin, "pin", "", "SHA-256 of the root's CA certificate, to pin it")
	f.StringVar(&cluster, "cluster", "", "sign in to the own port of this cluster, with the operator's token from --token-file")
	f.StringVar(&name, "name", "", "context to save (default: the context with this address, or else the address)")
	f.BoolVar(&stdin, "password-stdin", false, "read the password from stdin")
	return cmd
}

// loginContext returns the context to sign in to, which may be new, and its name.
func (c *cli) loginContext(ctx context.Context, all contexts.All, args []string, name, pin string) (contexts.Context, string, error) {
	addr := c.flags.Addr
	if len(args) > 0 {
		addr = args[0]
	}
	if addr == "" {
		w, err := c.where()
		if err != nil || w.Name == "" {
			return contexts.Context{}, "", usage("give the root's address: treeline login URL")
		}
		return w.Context, w.Name, nil
	}
	at := contexts.Context{URL: contexts.URL(addr)}
	name = cmp.Or(name, c.flags.Context)
	if i := slices.IndexFunc(all.Names(), func(n string) bool { return all.Contexts[n].URL == at.URL }); name == "" && i >= 0 {
		name = all.Names()[i]
	}
	if u, err := url.Parse(at.URL); name == "" && err == nil {
		name = u.Host
	}
	if old, ok := all.Contexts[name]; ok && old.URL == at.URL {
		at = old
	}
	ca, err := c.pinned(ctx, at.URL, pin)
	if ca != "" && ca != at.CA {
		at.CA, at.Replicas = ca, nil // another installation
	}
	return at, name, err
}

// pinned returns the CA certificate for --ca or --pin; empty if neither is given.
func (c *cli) pinned(ctx context.Context, url, pin string) (string, error) {
	switch {
	case c.flags.CA != "":
		text, err := os.ReadFile(c.flags.CA)
		if err != nil {
			return "", usage("--ca: %v", err)
		}
		return certificates(text)
	case pin != "":
		text, err := client.FetchCA(ctx, url, pin)
		return string(text), err
	}
	return "", nil
}

// certificates returns the certificates of a PEM file, which may also have a key.
func certificates(text []byte) (string, error) {
	var out []byte
	for b, rest := pem.Decode(text); b != nil; b, rest = pem.Decode(rest) {
		if b.Type == "CERTIFICATE" {
			out = append(out, pem.EncodeToMemory(b)...)
		}
	}
	if len(out) == 0 {
		return "", usage("--ca: the file has no PEM certificate")
	}
	return string(out), nil
}

func (c *cli) signIn(ctx context.Context, at contexts.Context, user, code string, stdin bool) (api.Session, error) {
	a, err := client.New(client.Options{URL: at.URL, CA: []byte(at.CA), Replicas: at.Replicas})
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

// maxSecret limits the first line of a file with a secret, in bytes.
const maxSecret = 64 << 10

// secret returns the last word of the first line of a file. For "-" it prompts on the terminal
// without echo, or reads stdin if there is no terminal.
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
		return "", usage("%s %s: the first line is empty (%v)", flag, file, err)
	}
	return words[len(words)-1], nil
}

// line returns the next line of stdin without its line end.
func (c *cli) line() (string, error) {
	if c.lines == nil {
		c.lines = bufio.NewReader(c.In)
	}
	line, err := c.lines.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

// warnVisible prints a warning about a secret in the arguments.
func (c *cli) warnVisible(flag, better string) {
	c.say("warning: other users of this machine can see the value of %s; use %s", flag, better)
}

func (c *cli) password(user string, fresh, stdin bool) (string, error) {
	if stdin {
		line, err := c.line()
		if line == "" {
			return "", usage("--password-stdin: the first line of stdin is empty (%v)", err)
		}
		return line, nil
	}
	if !c.InTTY || c.Secret == nil {
		return "", usage("no terminal to read the password from; use --password-stdin")
	}
	if !fresh {
		return c.Secret("password of " + user + ": ")
	}
	first, err := c.Secret("new password for " + user + ": ")
	if err != nil {
		return "", err
	}
	again, err := c.Secret("repeat the password: ")
	if err == nil && first != again {
		err = usage("the two passwords differ")
	}
	return first, err
}

func (c *cli) logoutCmd() *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "Sign out of the context", Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, _ []string) error {
			w, err := c.where()
			if err != nil {
				return err
			}
			if w.Name == "" || !w.SignedIn() {
				return fmt.Errorf("context is not signed in: %w", api.ErrUnauthenticated)
			}
			var ended error
			err = c.file().Update(func(all *contexts.All) error {
				at, err := all.Get(w.Name)
				if err != nil {
					return err
				}
				if at.Cluster == "" {
					ended = a.Logout(ctx, at.Refresh)
				}
				at.SetSession(api.Session{})
				all.Contexts[w.Name] = at
				return nil
			})
			if err != nil {
				return err
			}
			if ended != nil && !errors.Is(ended, api.ErrUnauthenticated) {
				return fmt.Errorf("signed out here, but the root could not be reached to revoke the session: %w", ended)
			}
			c.say("signed out of context %s", w.Name)
			return nil
		}),
	}
}

func (c *cli) whoamiCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "whoami", Short: "Show the signed-in user and the root's address", Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			me, err := a.WhoAmI(ctx)
			if err != nil {
				return err
			}
			switch {
			case p.Format == output.Name:
				p.Printf("%s", me.User)
			case p.ForPeople():
				p.Printf("%s, %s in %s, at %s", me.User, strings.Join(me.Roles, " and "), cmp.Or(me.Tenant, "the system"), a.URL())
			default:
				return p.Object(me)
			}
			return nil
		}),
	}
	c.outputFlags(cmd)
	return cmd
}
