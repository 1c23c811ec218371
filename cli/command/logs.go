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
)

// maxLine bounds a line that is prefixed: one without an end is cut there.
const maxLine = 64 << 10

func (c *cli) logsCmd() *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use: "logs APP|SERVICE|INSTANCE", Short: "Show what instances write", Args: cobra.ExactArgs(1),
		Long: `Show what instances write: their nodes dial a stream out, nothing is stored on
the way. Of several instances each line begins with whose it is.`,
		ValidArgsFunction: c.complete("instances", "services"),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := c.findInstances(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			a, err := c.api()
			if err != nil {
				return err
			}
			err = c.logs(cmd.Context(), a, found, follow, tail)
			if cmd.Context().Err() != nil && follow {
				return nil // Ctrl-C is how following ends
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on as they write")
	f.IntVar(&tail, "tail", -1, "lines from the end; -1: all that are kept")
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
			return fmt.Errorf("logs of %s %w", found[0].ID, brokeOff(err))
		}
		return nil
	}
	width := 0
	for _, i := range found {
		width = max(width, len(c.progress().Short(string(i.ID))))
	}
	var mu sync.Mutex // guards Out: a line is whole
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
				errs[k] = fmt.Errorf("logs of %s %w", i.ID, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// brokeOff says why a stream ended before its end.
func brokeOff(err error) error {
	if errors.Is(err, api.ErrUnauthenticated) {
		return fmt.Errorf("broke off: %w", err)
	}
	return fmt.Errorf("broke off: %w: %w", err, api.ErrUnavailable)
}

func prefixed(r io.Reader, line func([]byte)) error {
	br := bufio.NewReaderSize(r, maxLine)
	for {
		l, _, err := br.ReadLine() // a longer line comes in parts
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return brokeOff(err)
		}
		line(l)
	}
}
