package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/cli/ref"
)

// maxLine is the length in bytes at which a line of output is split.
const maxLine = 64 << 10

func (c *cli) logsCmd() *cobra.Command {
	var o client.LogOptions
	var since string
	cmd := &cobra.Command{
		Use: "logs APP|SERVICE|INSTANCE…", Short: "Show the output of instances", Args: cobra.MinimumNArgs(1),
		Long: `Show the output of instances, which their nodes keep. With several instances, each
line begins with the name of its instance. An instance of a service or application that
has not started, or that has just been deleted, is named on stderr. Times are to the
second, and those of lines that the workload wrote while the node engine did not run are
later.

With -f, an instance is followed until its workload ends. A service or application is
followed until it is deleted, or until all its instances have ended for good: restarts
and instances that start later, in any cluster, are followed from their first line. When
a node or cluster cannot be reached, stderr says so, and its logs go on later; lines of
the last two seconds may then be repeated. When the root ends, the command does, too.`,
		ValidArgsFunction: c.complete("instances", "services"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			var err error
			if o.Since, err = c.ago(since); err != nil {
				return err
			}
			numbered := slices.ContainsFunc(args, func(name string) bool { return strings.Contains(name, "#") })
			if o.Follow && !numbered && c.own() == "" {
				under, err := c.followed(ctx, a, args)
				if err != nil {
					return err
				}
				if len(under) > 0 {
					if err = c.followLogs(ctx, a, under, o); ctx.Err() != nil {
						return nil // ended by Ctrl-C
					}
					return err
				}
			}
			if o.Follow && len(args) > 1 && c.own() == "" && slices.ContainsFunc(args, func(name string) bool { return !strings.Contains(name, "#") }) {
				return usage("-f follows either applications and services, or instances: give the others to another command")
			}
			all, _, err := a.Instances(ctx, client.ListOptions{})
			if err != nil {
				return err
			}
			slices.SortFunc(all, func(x, y api.Instance) int { return ref.Compare(x.ID, y.ID) })
			found, missing := instanceKind.matchAll(c, args, all)
			if len(found) == 0 {
				return missing
			}
			var named []api.Instance
			if numbers := slices.DeleteFunc(slices.Clone(args), func(name string) bool { return !strings.Contains(name, "#") }); len(numbers) > 0 {
				named, _ = instanceKind.matchAll(c, numbers, all)
			}
			err = errors.Join(c.logs(ctx, a, found, named, o), missing)
			if ctx.Err() != nil && o.Follow {
				return nil // ended by Ctrl-C
			}
			return err
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.Follow, "follow", "f", false, "keep printing new output")
	f.IntVar(&o.Tail, "tail", -1, "number of lines from the end; -1: all that the node keeps")
	f.StringVar(&since, "since", "", "only lines of this long ago (10m) or since this time (RFC 3339)")
	f.BoolVar(&o.Timestamps, "timestamps", false, "begin each line with its time")
	f.BoolVarP(&o.Previous, "previous", "p", false, "show the output of the attempt before the last restart")
	cmd.MarkFlagsMutuallyExclusive("follow", "previous")
	c.selectable(cmd, "services", false)
	return cmd
}

// ago returns how long ago a duration or a time is; 0 for no text.
func (c *cli) ago(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		var t time.Time
		if t, err = time.Parse(time.RFC3339, text); err == nil {
			d = c.Now().Sub(t)
		}
	}
	const most = 365 * 24 * time.Hour
	if err != nil || d <= 0 || d > most {
		return 0, usage("--since %q: want a duration such as 10m or a time such as 2026-01-31T12:00:00Z, at most a year ago", text)
	}
	return d, nil
}

// logs prints the logs of the instances in found. An instance without logs is an error if it is in named,
// or if none has any.
func (c *cli) logs(ctx context.Context, a *client.Client, found, named []api.Instance, o client.LogOptions) error {
	if len(found) == 1 {
		body, err := a.ReadLogs(ctx, found[0].ID, o)
		if err != nil {
			return err
		}
		defer body.Close()
		if _, err = io.Copy(c.Out, body); err != nil {
			return fmt.Errorf("logs of %s: %w", found[0].ID, again(interrupted(err)))
		}
		return nil
	}
	width := 0
	for _, i := range found {
		width = max(width, len(c.progress().Short(string(i.ID))))
	}
	var mu sync.Mutex // guards Out, so that lines do not mix
	var wg sync.WaitGroup
	errs := make([]error, len(found))
	for k, i := range found {
		prefix := fmt.Sprintf("%-*s | ", width, c.progress().Short(string(i.ID)))
		wg.Go(func() {
			body, err := a.ReadLogs(ctx, i.ID, o)
			if err != nil {
				if errs[k] = err; !strings.Contains(err.Error(), string(i.ID)) {
					errs[k] = fmt.Errorf("logs of %s: %w", i.ID, err)
				}
				return
			}
			defer body.Close()
			err = prefixed(body, func(line []byte) {
				mu.Lock()
				defer mu.Unlock()
				_, _ = fmt.Fprintf(c.Out, "%s%s\n", prefix, line)
			})
			if err != nil {
				errs[k] = fmt.Errorf("logs of %s: %w", i.ID, again(err))
			}
		})
	}
	wg.Wait()
	none := 0
	for k, err := range errs {
		isNamed := slices.ContainsFunc(named, func(i api.Instance) bool { return i.ID == found[k].ID })
		if !isNamed && (errors.Is(err, api.ErrConflict) || errors.Is(err, api.ErrNotFound)) { // it has not started, or has been deleted
			none++
			errs[k] = nil
			c.say("%v", err)
		}
	}
	if none == len(found) {
		return fmt.Errorf("none of %d instances has logs: %w", none, api.ErrConflict)
	}
	return errors.Join(errs...)
}

// interrupted wraps the error of a stream that ended early.
func interrupted(err error) error {
	if errors.Is(err, api.ErrUnauthenticated) {
		return fmt.Errorf("stream interrupted: %w", err)
	}
	what := "the connection broke: the server ended or cannot be reached"
	if strings.Contains(err.Error(), "stream error") { // of HTTP/2: the server has reset the stream
		what = "its node or cluster ended or cannot be reached"
	}
	return fmt.Errorf("stream interrupted: %s: %w", what, api.ErrUnavailable)
}

// again adds to the error of an interrupted stream what to do.
func again(err error) error {
	if errors.Is(err, api.ErrUnavailable) {
		return fmt.Errorf("%w; run the command again, with --since to skip what was shown", err)
	}
	return err
}

// prefixed calls line with each line of r.
func prefixed(r io.Reader, line func([]byte)) error {
	br := bufio.NewReaderSize(r, maxLine)
	for {
		l, _, err := br.ReadLine() // splits longer lines
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return interrupted(err)
		}
		line(l)
	}
}
