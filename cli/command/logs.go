package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

// maxLine is the length in bytes at which a line of output is split.
const maxLine = 64 << 10

func (c *cli) logsCmd() *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use: "logs APP|SERVICE|INSTANCE", Short: "Show the output of instances", Args: cobra.ExactArgs(1),
		Long: `Show the output of instances, which their nodes keep. With several instances, each
line begins with the name of its instance.`,
		ValidArgsFunction: c.complete("instances", "services"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			found, err := c.findInstances(ctx, a, args[0])
			if err != nil {
				return err
			}
			err = c.logs(ctx, a, found, follow, tail)
			if ctx.Err() != nil && follow {
				return nil // ended by Ctrl-C
			}
			return err
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "keep printing new output")
	f.IntVar(&tail, "tail", -1, "number of lines from the end; -1: all that the node keeps")
	return cmd
}

func (c *cli) logs(ctx context.Context, a *client.Client, found []api.Instance, follow bool, tail int) error {
	if len(found) == 1 {
		body, err := a.Logs(ctx, found[0].ID, follow, tail)
		if err != nil {
			return err
		}
		defer body.Close()
		if _, err = io.Copy(c.Out, body); err != nil {
			return fmt.Errorf("logs of %s: %w", found[0].ID, interrupted(err))
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
			body, err := a.Logs(ctx, i.ID, follow, tail)
			if err != nil {
				errs[k] = fmt.Errorf("logs of %s: %w", i.ID, err)
				return
			}
			defer body.Close()
			err = prefixed(body, func(line []byte) {
				mu.Lock()
				defer mu.Unlock()
				_, _ = fmt.Fprintf(c.Out, "%s%s\n", prefix, line)
			})
			if err != nil {
				errs[k] = fmt.Errorf("logs of %s: %w", i.ID, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// interrupted wraps the error of a stream that ended early.
func interrupted(err error) error {
	if errors.Is(err, api.ErrUnauthenticated) {
		return fmt.Errorf("stream interrupted: %w", err)
	}
	return fmt.Errorf("stream interrupted: %w: %w", err, api.ErrUnavailable)
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
