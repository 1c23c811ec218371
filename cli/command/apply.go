package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/follow"
	"github.com/treeline-edge/treeline/cli/output"
)

// errFetch is the kind of errors from fetching an SLA from a URL.
var errFetch = fmt.Errorf("%w", api.ErrUnavailable)

// errTimeout is the cause of a context that --timeout cancelled.
var errTimeout = fmt.Errorf("timed out: %w", api.ErrTimeout)

func (c *cli) applyCmd() *cobra.Command {
	var from slaFile
	var detach bool
	var timeout time.Duration
	var ifMatch string
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Create or update applications or custom resources, and follow their progress", Args: fileByFlag,
		Long: `Create or update the applications in an SLA (JSON or YAML), and follow their
progress: one line for each event, with the time since the first event and the tier
that reported it. Ctrl-C stops following; the roll-out continues. The command exits
with 1 as soon as an instance has failed for good or a new version of a service has
failed, even if the version before has returned, with 3 if an instance could not
be placed within --timeout, with 4 if one was placed but does not run, or is not ready, by then.

A file may instead have custom kinds (kind: kind, name, schema) and custom resources
(kind: KIND, name, spec), in YAML separated by lines with ---. They are applied in
their order.

A file of services alone ({"microservices": […]}, as for Oakestra's dashboard) needs
--application: its services are added to those of that application, or replace those
of the same name.`,
		Example: "  treeline apply -f shop.yaml\n  cat shop.json | treeline apply -f - --detach\n  treeline apply -f services.json --application shop.prod",
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			doc, err := c.document(ctx, from.name)
			if err != nil {
				return err
			}
			if custom, err := definitions(from.name, doc); err != nil || len(custom) > 0 {
				switch {
				case err != nil:
					return err
				case from.application != "":
					return usage("--application: %s has custom kinds or resources, which belong to no application", from.name)
				}
				return c.applyDefinitions(ctx, p, a, from.name, ifMatch, custom)
			}
			apps, since, err := c.apply(ctx, a, from, doc, ifMatch)
			if err != nil {
				return err
			}
			for _, app := range apps {
				c.say("  %8s  %-18s %s: %d services, %d instances wanted", "", "(root)", p.Short(string(app.ID)), len(app.Services), app.Wanted)
			}
			if !detach {
				if err := c.monitor(ctx, a, apps, since, timeout); err != nil {
					return err
				}
			}
			return showApplied(ctx, a, p, apps, detach)
		}),
	}
	f := cmd.Flags()
	c.slaFlags(cmd, &from)
	f.BoolVar(&detach, "detach", false, "do not follow the progress")
	f.StringVar(&ifMatch, "if-match", "", "apply only if the SLA's one application is at this revision, as plan prints it; 0: does not exist")
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "stop following after this time; the roll-out continues")
	c.outputFlags(cmd)
	return cmd
}

// slaFile is where an SLA comes from.
type slaFile struct {
	name        string // file, URL, or - for stdin
	application string // gets the services of a file of services alone; empty: the file names its applications
}

func (c *cli) slaFlags(cmd *cobra.Command, from *slaFile) {
	cmd.Flags().StringVarP(&from.name, "file", "f", "", "file, URL, or - for stdin")
	cmd.Flags().StringVar(&from.application, "application", "", "NAME.NAMESPACE of the application, new or not, to which the services of a file without applications are added")
	_ = cmd.MarkFlagRequired("file")
	c.completeFlag(cmd, "application", "apps")
}

// options returns the options of requests with the SLA.
func (c *cli) options(ctx context.Context, from slaFile, doc []byte) (client.ApplyOptions, error) {
	o := client.ApplyOptions{Tenant: c.tenant(), Application: from.application, ContentType: contentType(from.name, doc)}
	id := api.AppID(from.application)
	if id != "" && !strings.Contains(id.Name(), ".") { // short, as in other commands
		app, err := appKind.find(ctx, c, from.application)
		if errors.Is(err, api.ErrNotFound) {
			return o, usage("--application %s: no application has this name; a new one is NAME.NAMESPACE", from.application)
		}
		if err != nil {
			return o, err
		}
		id = app.ID
	}
	if t := id.Tenant(); t != "" {
		o.Tenant = t
	}
	o.Application = id.Name()
	return o, nil
}

// match parses --if-match: a revision, or 0 for an application that must not exist.
func match(text string) (at api.Revision, mustNotExist bool, err error) {
	if text == "" {
		return 0, false, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, false, usage("--if-match %s: want a revision, as treeline plan prints it", text)
	}
	return api.Revision(n), n == 0, nil
}

// fileByFlag refuses positional arguments of commands that take the file from -f.
func fileByFlag(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("give the file with -f: %s -f %s", cmd.CommandPath(), args[0])
	}
	return nil
}

// tabs returns a hint if a refused YAML document is indented with tabs, which YAML forbids and
// which look like spaces.
func tabs(file string, doc []byte, err error) string {
	if !errors.Is(err, api.ErrInvalid) || contentType(file, doc) == "application/json" {
		return ""
	}
	n := 0
	for line := range bytes.Lines(doc) {
		if n++; line[0] == '\t' {
			return fmt.Sprintf("; line %d begins with a tab: indent YAML with spaces", n)
		}
	}
	return ""
}

// apply applies the SLA in a file. It returns the applications, and the root's revision from before
// the change. ifMatch is the text of --if-match.
func (c *cli) apply(ctx context.Context, a *client.Client, from slaFile, doc []byte, ifMatch string) (apps []api.App, since api.Revision, err error) {
	options, err := c.options(ctx, from, doc)
	if err != nil {
		return nil, 0, err
	}
	if options.IfMatch, options.MustNotExist, err = match(ifMatch); err != nil {
		return nil, 0, err
	}
	if since, err = revision(ctx, a); err != nil {
		return nil, 0, err
	}
	if apps, err = a.Apply(ctx, doc, options); err != nil {
		return nil, 0, fmt.Errorf("apply %s: %w%s", from.name, err, tabs(from.name, doc, err))
	}
	return apps, since, nil
}

// revision returns the root's present revision.
func revision(ctx context.Context, a *client.Client) (api.Revision, error) {
	var page api.Page[api.App]
	_, err := a.Do(ctx, client.Request{Method: http.MethodGet, Path: string(client.Apps), Query: url.Values{"limit": {"1"}}}, &page)
	return page.Revision, err
}

func showApplied(ctx context.Context, a *client.Client, p output.Printer, apps []api.App, detach bool) error {
	for i := range apps {
		if detach {
			break
		}
		var err error
		if apps[i], err = a.App(ctx, apps[i].ID); err != nil {
			return err
		}
	}
	if len(apps) == 1 {
		return output.One(p, output.Apps, apps[0])
	}
	return output.List(p, output.Apps, api.Page[api.App]{Items: apps})
}

// fetchTime limits a single request.
const fetchTime = 30 * time.Second

func (c *cli) document(ctx context.Context, file string) ([]byte, error) {
	var r io.Reader
	switch {
	case file == "-":
		r = c.In
	case strings.HasPrefix(file, "https://"), strings.HasPrefix(file, "http://"):
		ctx, cancel := context.WithTimeout(ctx, fetchTime)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, file, nil)
		if err != nil {
			return nil, usage("-f: %v", err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, fmt.Errorf("fetch the SLA: %w: %w", err, errFetch)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("fetch the SLA from %s: %s", file, resp.Status)
		}
		r = resp.Body
	default:
		f, err := os.Open(file)
		if err != nil {
			return nil, usage("-f: %v", err)
		}
		defer f.Close()
		r = f
	}
	doc, err := io.ReadAll(io.LimitReader(r, api.MaxSLABytes+1))
	switch {
	case err != nil:
		return nil, usage("-f: %v", err)
	case len(doc) > api.MaxSLABytes:
		return nil, fmt.Errorf("%s has more than %d bytes, the most that an SLA may have; apply its applications one by one: %w", file, api.MaxSLABytes, api.ErrTooLarge)
	case len(bytes.TrimSpace(doc)) == 0:
		return nil, usage("-f %s: the file is empty, want an SLA in JSON or YAML", file)
	}
	return doc, nil
}

// contentType returns the media type of an SLA from the extension of its file. Without a known
// extension, a document that begins like a JSON object is JSON: it may also be valid YAML, but the
// JSON parser reports errors more precisely.
func contentType(file string, doc []byte) string {
	const asJSON, asYAML = "application/json", "application/yaml"
	if u, err := url.Parse(file); err == nil && u.Host != "" {
		file = u.Path
	}
	switch strings.ToLower(path.Ext(file)) {
	case ".json":
		return asJSON
	case ".yaml", ".yml":
		return asYAML
	}
	d := bytes.TrimLeft(doc, " \t\r\n\ufeff")
	if inner, ok := bytes.CutPrefix(d, []byte("{")); ok && bytes.HasPrefix(bytes.TrimLeft(inner, " \t\r\n"), []byte(`"`)) || json.Valid(d) {
		return asJSON
	}
	return asYAML
}

// monitor prints the events of the applications after a revision, until all wanted instances run or
// the timeout is over.
func (c *cli) monitor(ctx context.Context, a *client.Client, apps []api.App, since api.Revision, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	steps := &steps{out: c.progress()}
	for _, app := range apps {
		steps.after = since // for each application
		if err := c.monitorApp(ctx, a, app, steps); err != nil {
			return err
		}
	}
	return nil
}

func (c *cli) monitorApp(ctx context.Context, a *client.Client, app api.App, steps *steps) error {
	progress := follow.New(nil)
	since, id, name := steps.after, string(app.ID), c.progress().Short(string(app.ID))
	err := track(ctx, a, id, progress, func() (bool, error) {
		if progress.Done() || progress.RollOutFailed() {
			return true, nil
		}
		return false, c.unreachable(progress, name, "running")
	}, func(ctx context.Context, hand post) error { return c.follow(ctx, a, id, steps, hand) })
	if err == nil {
		if err := c.lastSteps(ctx, a, id, steps); err != nil {
			return err
		}
		return c.rollOutErrors(ctx, a, progress.Services(), since)
	}
	return c.unfinished(ctx, a, app, progress, err)
}

// follow prints the events of an object after those that steps has printed, until ctx ends.
func (c *cli) follow(ctx context.Context, a *client.Client, under string, steps *steps, hand post) error {
	handle := func(e api.Event) bool { return hand(func() { steps.print(e) }) }
	s, since := eventKind.under(a, under), steps.after
	for {
		// List first: after a restart, the root has the earlier events but not the earlier changes.
		all, rev, err := a.Events(ctx, client.ListOptions{Under: under, Since: since})
		if err != nil {
			return err
		}
		for _, e := range all {
			if !handle(e) {
				return nil
			}
		}
		since = max(since, rev)
		err = s.watch(ctx, since, func(s seen[api.Event]) (bool, error) {
			if s.Object == nil {
				return true, nil
			}
			since = max(since, s.Object.Seq)
			return handle(*s.Object), nil
		})
		if !errors.Is(err, api.ErrGone) {
			return err
		}
	}
}

// lastSteps prints the events that the stream had not delivered when the state was reached.
func (c *cli) lastSteps(ctx context.Context, a *client.Client, under string, steps *steps) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	rest, _, err := a.Events(ctx, client.ListOptions{Under: under, Since: steps.after})
	if err != nil {
		return err
	}
	for _, e := range rest {
		steps.print(e)
	}
	return nil
}

// rollOutErrors returns why the roll-outs of services have failed, among those of versions after a
// revision and those that stay as they are.
func (c *cli) rollOutErrors(ctx context.Context, a *client.Client, services []api.ServiceID, since api.Revision) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	var all []error
	for _, id := range services {
		r, err := a.RollOut(ctx, id)
		switch {
		case errors.Is(err, api.ErrNotFound): // it was deleted, or the root has an earlier release
		case err != nil:
			all = append(all, err)
		case r.State == api.RollOutFailed, r.Failed > since:
			all = append(all, c.rollOutError(ctx, a, r))
		}
	}
	return errors.Join(all...)
}

// unfinished returns the error, and prints the state of the roll-out, when following ends too
// early.
func (c *cli) unfinished(ctx context.Context, a *client.Client, app api.App, progress *follow.Progress, err error) error {
	name := c.progress().Short(string(app.ID))
	if !errors.Is(err, api.ErrTimeout) {
		if errors.Is(err, context.Canceled) {
			c.say("no longer following; the roll-out of %s continues: treeline get instances %s -w", name, name)
		}
		return err
	}
	n, wanted := progress.Counts()
	if unplaced := progress.Unplaced(); len(unplaced) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTime)
		defer cancel()
		if w, err := a.Why(ctx, unplaced[0].ID); err == nil {
			_ = output.Why(c.progress(), w)
		}
		return fmt.Errorf("%s: %d of %d instances run, %d could not be placed; they are placed as soon as there is capacity (treeline why %s): %w",
			name, n, wanted, len(unplaced), c.progress().Short(string(unplaced[0].ID)), errNotPlaceable)
	}
	for _, i := range progress.Unsettled() {
		c.say("  %s is %s %s %s", c.progress().Short(string(i.ID)), output.StateOf(i), i.Reason, i.Detail)
	}
	if u := progress.Unready(); len(u) > 0 {
		return fmt.Errorf("%s: %d of %d instances run and are ready, %s; the roll-out continues: %w", name, n, wanted, c.unready(u), err)
	}
	return fmt.Errorf("%s: %d of %d instances run; the roll-out continues: %w", name, n, wanted, err)
}

// steps prints each event once, with the time since the first event.
type steps struct {
	out   output.Printer
	after api.Revision // of the last event printed
	first time.Time
}

func (s *steps) print(e api.Event) {
	if e.Seq <= s.after {
		return
	}
	s.after = e.Seq
	if s.first.IsZero() {
		s.first = e.Time
	}
	what := string(e.State)
	if e.Reason != "" {
		what += " (" + string(e.Reason) + ")"
	}
	line := fmt.Sprintf("  %7.3fs  %-18s %s  %s", e.Time.Sub(s.first).Seconds(), "("+output.TierOf(e)+")", s.out.Short(output.ObjectOf(e)), what)
	if e.Detail != "" {
		line = strings.TrimRight(line, " ") + "  " + e.Detail
	}
	fmt.Fprintln(s.out.Out, s.out.Paint(lineStyle(e), output.Clean(line)))
}

func lineStyle(e api.Event) output.Style {
	if st := output.StateStyle(e.State); st == output.Good || st == output.Bad {
		return st
	}
	return output.Plain
}
