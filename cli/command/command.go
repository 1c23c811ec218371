// Package command implements the commands of treeline with cobra. A command parses its
// flags, sends requests with package api/client, and prints the answers with package
// output. Package ref resolves names of objects, package contexts selects the root, and
// package follow computes the progress of a roll-out.
//
//	os.Exit(command.Main(ctx, os.Args[1:], command.Terminal()))
package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/contexts"
	"github.com/treeline-edge/treeline/cli/output"
)

// IO is the environment of a command.
type IO struct {
	In       io.Reader
	Out, Err io.Writer // data, progress
	Env      func(string) string
	Now      func() time.Time
	Program  string // path of this program; empty: unknown

	InTTY, OutTTY, ErrTTY bool
	Console               Console                             // nil: stdin is not a terminal
	Secret                func(prompt string) (string, error) // reads a line from the terminal without echo
	Browse                func(url string) error              // opens a page in the browser; nil: there is none
}

// Terminal returns the standard streams, environment and clock of this process.
func Terminal() IO {
	enableEscapes()
	tty := func(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
	program, _ := os.Executable()
	var console Console
	if tty(os.Stdin) {
		console = stdConsole{}
	}
	return IO{
		Console: console, Browse: browse,
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Env: os.Getenv, Now: time.Now, Program: program,
		InTTY: tty(os.Stdin), OutTTY: tty(os.Stdout), ErrTTY: tty(os.Stderr),
		Secret: func(prompt string) (string, error) {
			fmt.Fprint(os.Stderr, prompt)
			b, err := term.ReadPassword(int(os.Stdin.Fd()))
			fmt.Fprintln(os.Stderr)
			return string(b), err
		},
	}
}

// Main runs one command line and returns the exit code.
func Main(ctx context.Context, args []string, stdio IO) int {
	c := &cli{IO: stdio}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(stdio.In)
	root.SetOut(stdio.Out)
	root.SetErr(stdio.Err)
	ctx, end, err := traced(ctx, stdio)
	if err == nil {
		var cmd *cobra.Command
		cmd, err = root.ExecuteContextC(ctx)
		end(cmd, err)
	}
	if c.client != nil {
		c.client.Close()
	}
	if err != nil && !c.ran {
		err = usage("%s", oneLine(err.Error()))
	}
	return c.report(ctx, err)
}

// oneLine joins cobra's error and its suggestions to one line.
func oneLine(s string) string {
	what, guesses, ok := strings.Cut(strings.TrimSpace(s), "\n\nDid you mean this?\n")
	if !ok {
		return what
	}
	likely := strings.Fields(guesses)
	// Every short word is at most two changes from a name of two letters.
	if longer := slices.DeleteFunc(slices.Clone(likely), func(g string) bool { return len(g) < 3 }); len(longer) > 0 {
		likely = longer
	}
	return what + "; did you mean " + strings.Join(likely, " or ") + "?"
}

type cli struct {
	IO
	config    string // path of the contexts file
	flags     contexts.Flags
	tokenFile string
	format    string
	noHeaders bool
	sortBy    string // column of lists
	ran       bool   // arguments and flags were valid

	lines  *bufio.Reader // reads In; nil: not used yet
	chosen *contexts.Chosen
	client *client.Client
	// learnt is what a handshake of client has shown of the root's certificates.
	learnt atomic.Pointer[followed]
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use: "treeline", Short: "Run services at the edge, and explain their placement",
		Long: `Run services at the edge, and explain their placement.

Name an instance as app/service#2 or app.ns.service.ns#2, or by a part of that name
which matches one instance only. * matches any characters (shop/w*).

Data is written to stdout, progress to stderr. Exit codes: 0 success, 1 failure,
2 usage, 3 cannot be placed, 4 timeout, 5 not signed in or not allowed,
6 not found, 7 conflict, 8 unreachable.`,
		SilenceErrors: true, SilenceUsage: true,
		SuggestionsMinimumDistance: 2,
	}
	f := root.PersistentFlags()
	f.StringVar(&c.flags.Context, "context", "", "context to use ("+contexts.EnvContext+")")
	f.StringVar(&c.flags.Addr, "addr", "", "the root's address ("+contexts.EnvAddr+")")
	f.StringVar(&c.flags.CA, "ca", "", "file of the CA certificate to pin ("+contexts.EnvCA+")")
	f.StringVar(&c.tokenFile, "token-file", "", "file with a token to use instead of the session; - reads stdin ("+contexts.EnvToken+" is the token itself)")
	f.StringVar(&c.flags.Token, "token", "", "the token itself, which other users of this machine can see")
	_ = f.MarkHidden("token")
	root.MarkFlagsMutuallyExclusive("token", "token-file")
	f.StringVar(&c.flags.Tenant, "tenant", "", "tenant whose objects the command uses ("+contexts.EnvTenant+")")
	f.StringVar(&c.config, "config", contexts.DefaultPath(c.Env, c.Program), "file with the contexts")
	c.completeFlag(root, "tenant", "tenants")
	_ = root.RegisterFlagCompletionFunc("context", c.contextNames)
	root.AddCommand(
		c.applyCmd(), c.planCmd(), c.diffCmd(), c.createCmd(), c.explainCmd(), c.getCmd(), c.psCmd(), c.describeCmd(), c.whyCmd(), c.eventsCmd(), c.topCmd(), c.logsCmd(), c.execCmd(), c.attachCmd(), c.portForwardCmd(), c.cpCmd(), c.netCmd(), c.waitCmd(),
		c.scaleCmd(), c.rolloutCmd(), c.snapshotCmd(), c.restoreCmd(), c.rotateCmd(), c.deleteCmd(), c.cordonCmd(), c.uncordonCmd(), c.drainCmd(), c.moveCmd(), c.openCmd(), c.closeCmd(), c.capCmd(), c.tokenCmd(), c.webhookCmd(), c.addonCmd(),
		c.loginCmd(), c.logoutCmd(), c.whoamiCmd(), c.ctxCmd(), c.tenantCmd(), c.userCmd(),
		c.passwdCmd(), c.manCmd(), c.doctorCmd(), c.debugCmd(), c.bundleCmd(),
		c.uiCmd(), c.devCmd(), c.versionCmd(),
	)
	c.wrap(root)
	return root
}

// wrap sets cli.ran when a command runs, so that errors before that are usage errors, and makes
// command groups report unknown commands.
func (c *cli) wrap(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		c.wrap(sub)
	}
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			c.ran = true
			return run(cmd, args)
		}
		return
	}
	if cmd.HasSubCommands() && cmd.HasParent() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = unknown
	}
}

// unknown returns the error for an unknown command of a group.
func unknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		_ = cmd.Help()
		return usage("%s: give one of its commands", cmd.CommandPath())
	}
	hint := "; it has"
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			hint += " " + sub.Name()
		}
	}
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		hint = "; did you mean " + strings.Join(s, " or ") + "?"
	}
	return usage("%s has no command %q%s", cmd.CommandPath(), args[0], hint)
}

func (c *cli) file() *contexts.File { return contexts.Open(c.config) }

func (c *cli) where() (contexts.Chosen, error) {
	if c.chosen == nil {
		all, err := c.file().Load()
		if err != nil {
			return contexts.Chosen{}, err
		}
		if c.tokenFile != "" && c.flags.Token == "" {
			if c.flags.Token, err = c.secret("--token-file", c.tokenFile, "token: "); err != nil {
				return contexts.Chosen{}, err
			}
		}
		chosen, err := contexts.Choose(all, c.flags, c.Env)
		if errors.Is(err, api.ErrInvalid) {
			err = fmt.Errorf("%w%w", hidden{errUsage}, err)
		}
		if err != nil {
			return chosen, err
		}
		c.chosen = &chosen
	}
	return *c.chosen, nil
}

// api returns a client for the context of the command.
func (c *cli) api() (*client.Client, error) {
	if c.client != nil {
		return c.client, nil
	}
	w, err := c.where()
	if err != nil {
		return nil, err
	}
	var session *contexts.Session
	o := client.Options{URL: w.URL, CA: []byte(w.CA), Replicas: w.Replicas}
	if w.Cluster != "" {
		o.Expect = client.OfCluster(w.Cluster)
	}
	if w.Name != "" {
		// Saved at the end: a refresh of the session holds the lock of the file while it connects.
		o.Followed = func(ca []byte) { c.learnt.Store(&followed{name: w.Name, from: w.CA, to: string(ca)}) }
	}
	switch {
	case w.Token != "":
		if c.flags.Token != "" && c.tokenFile == "" {
			c.warnVisible("--token", "--token-file FILE, or "+contexts.EnvToken)
		}
		o.Tokens = client.Static(w.Token)
	case w.Cluster != "":
		o.Tokens = client.Static(w.Access)
	case w.Name != "":
		session = contexts.NewSession(c.file(), w.Name, w.Context, c.Now, func(ctx context.Context, token string) (api.Session, error) {
			return c.client.Refresh(ctx, token)
		})
		o.Tokens = session
	default:
		o.Tokens = client.Static("")
	}
	if c.client, err = client.New(o); err != nil {
		return nil, fmt.Errorf("%w%w", hidden{errUsage}, err)
	}
	return c.client, nil
}

// followed is a change of the root certificates that a context pins.
type followed struct{ name, from, to string }

// saveFollowed saves the root certificates to which the pinned ones have led.
func (c *cli) saveFollowed() {
	f := c.learnt.Load()
	if f == nil {
		return
	}
	err := c.file().Update(func(all *contexts.All) error {
		if x, ok := all.Contexts[f.name]; ok && x.CA == f.from {
			x.CA = f.to
			all.Contexts[f.name] = x
		}
		return nil
	})
	if err != nil {
		c.say("warning: the key of the root's CA was replaced, and its new certificate is not saved: %v", err)
	}
}

// action is a command that needs a printer for the chosen format and a client.
type action func(ctx context.Context, p output.Printer, a *client.Client, args []string) error

// run converts an action to a function for cobra.
func (c *cli) run(fn action) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		p, err := c.printer()
		if err != nil {
			return err
		}
		if own := c.own(); own != "" && !served(cmd) {
			return usage("%s needs the root, and this context is of cluster %s itself: choose another with --context", cmd.CommandPath(), own)
		}
		a, err := c.api()
		switch {
		case errors.Is(err, errUsage):
			return err
		case err == nil:
			if err := c.tenantExists(cmd, a); err != nil {
				return err
			}
			defer c.saveFollowed()
			return fn(cmd.Context(), p, a, args)
		}
		// Usage errors come first, and fn finds some of them: it gets a client that sends nothing.
		if a, err2 := client.New(client.Options{URL: "https://none", Tokens: noTokens{err}}); err2 == nil {
			if wrong := fn(cmd.Context(), p, a, args); errors.Is(wrong, errUsage) {
				return wrong
			}
		}
		return err
	}
}

// tenantExists returns an error if --tenant names a tenant that does not exist. Lists would be empty otherwise.
func (c *cli) tenantExists(cmd *cobra.Command, a *client.Client) error {
	f := cmd.Flag("tenant")
	if f == nil || !f.Changed || c.flags.Tenant == "" || c.own() != "" {
		return nil
	}
	_, err := a.Tenant(cmd.Context(), api.Tenant(c.flags.Tenant))
	if errors.Is(err, api.ErrNotFound) { // other errors: the command itself reports what the user may not do
		return fmt.Errorf("--tenant %s: %w; see treeline tenant list", c.flags.Tenant, err)
	}
	return nil
}

// noTokens fails before a request is sent.
type noTokens struct{ err error }

func (n noTokens) Token(context.Context, string) (string, error) { return "", n.err }

// tenant returns the tenant whose objects the command uses; empty: all visible tenants.
func (c *cli) tenant() api.Tenant {
	w, err := c.where()
	if err != nil || w.Tenant != "" {
		return w.Tenant
	}
	if i := strings.LastIndexByte(w.User, '/'); i >= 0 {
		return api.Tenant(w.User[:i])
	}
	return ""
}

// outputFlags adds the flags of a command that prints objects whose names (-o name) other commands
// accept; see unnamedFlags.
func (c *cli) outputFlags(cmd *cobra.Command) { c.formatFlags(cmd, output.Formats) }

// unnamedFlags is outputFlags for objects whose names no other command accepts. It refuses -o name.
func (c *cli) unnamedFlags(cmd *cobra.Command) {
	c.formatFlags(cmd, slices.DeleteFunc(slices.Clone(output.Formats), func(f output.Format) bool { return f == output.Name }))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if output.Format(c.format) == output.Name {
			return fmt.Errorf("%s does not support -o name, because no command accepts such names; use -o json", cmd.CommandPath())
		}
		return nil
	}
}

func (c *cli) formatFlags(cmd *cobra.Command, formats []output.Format) {
	all := make([]string, len(formats))
	for i, f := range formats {
		all[i] = string(f)
		if f == output.JSONPath || f == output.GoTemplate {
			all[i] += "=TEMPLATE"
		}
	}
	list := strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
	cmd.Flags().StringVarP(&c.format, "output", "o", string(output.Text), list)
	cmd.Flags().BoolVar(&c.noHeaders, "no-headers", false, "omit the header line")
	for i := range all {
		all[i] = strings.TrimSuffix(all[i], "TEMPLATE")
	}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

// printer returns a printer to stdout for the chosen format.
func (c *cli) printer() (output.Printer, error) {
	p := c.printerTo(c.Out, c.OutTTY)
	p.Say = c.say
	if c.format != "" {
		var err error
		if p.Format, p.Template, err = output.Parse(c.format); err != nil {
			return p, usage("-o %s: %v", c.format, err)
		}
	}
	if p.NoHeaders = c.noHeaders; !slices.Contains(output.Formats, p.Format) {
		return p, usage("-o %s: want table, wide, json, yaml, name, jsonpath=TEMPLATE or go-template=TEMPLATE", c.format)
	}
	return p, nil
}

// progress returns a printer to stderr, for progress and messages.
func (c *cli) progress() output.Printer { return c.printerTo(c.Err, c.ErrTTY) }

func (c *cli) printerTo(w io.Writer, tty bool) output.Printer {
	return output.Printer{
		Out: w, Format: output.Text, Tenant: c.tenant(), Now: c.Now, Terminal: tty,
		Colour: tty && c.Env("NO_COLOR") == "" && c.Env("TERM") != "dumb",
	}
}

// say prints a line to stderr.
func (c *cli) say(format string, args ...any) { c.progress().Printf(format, args...) }

// confirm asks the user for confirmation. Without a terminal it requires --yes.
func (c *cli) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if !c.InTTY || !c.ErrTTY {
		return usage("%s Without a terminal to confirm on, use --yes.", question)
	}
	fmt.Fprintf(c.Err, "%s [y/N] ", output.Clean(question))
	line, _ := c.line()
	if a := strings.ToLower(strings.TrimSpace(line)); a != "y" && a != "yes" {
		return errors.New("cancelled")
	}
	return nil
}
