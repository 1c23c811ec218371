package command

import (
	"context"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

const keysPath = "/v1/system/keys"

func (c *cli) rotateCmd() *cobra.Command {
	var revoke, yes, list bool
	cmd := &cobra.Command{
		Use: "signing-key", Short: "Replace the key with which the root signs the tokens of users", Args: cobra.NoArgs,
		Long: `Replace the key with which the root signs the tokens of users. Nobody has to sign in again: the
new key signs after 90 minutes, when all clusters have fetched it, and the earlier key is
valid until the last token that it may have signed has ended, at most 366 days later.

After the theft of a key, --revoke-tokens drops the earlier keys at once. All sessions and
personal tokens end. Clusters refuse their tokens when they have fetched the keys: within a
minute of the first new token that they get, otherwise within an hour.`,
		Example: `  treeline rotate signing-key
  treeline rotate signing-key --list
  treeline rotate signing-key --revoke-tokens`,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			if revoke {
				if list {
					return usage("give either --list or --revoke-tokens")
				}
				if err := c.confirm(yes, "This ends all sessions and personal tokens, also yours."); err != nil {
					return err
				}
			}
			if !list {
				if _, err := a.Do(ctx, client.Request{Method: http.MethodPost, Path: keysPath, Body: api.RotateKey{RevokeTokens: revoke}}, nil); err != nil {
					return err
				}
			}
			if revoke {
				c.say("earlier keys dropped; sign in again with treeline login")
				return nil
			}
			var page api.Page[api.SigningKey]
			if _, err := a.Do(ctx, client.Request{Method: http.MethodGet, Path: keysPath}, &page); err != nil {
				return err
			}
			for _, k := range page.Items {
				state := "signs"
				switch {
				case k.Signs.After(time.Now()):
					state = "signs from " + k.Signs.Local().Format(time.DateTime)
				case k.Replaced.After(time.Now()):
					state = "signs until " + k.Replaced.Local().Format(time.DateTime)
				case !k.Ends.IsZero():
					state = "verifies until " + k.Ends.Local().Format(time.DateTime)
				}
				p.Printf("%s  made %s  %s\n", output.Clean(k.ID), k.Made.Local().Format(time.DateTime), state)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&revoke, "revoke-tokens", false, "drop the earlier keys at once, after a theft")
	cmd.Flags().BoolVar(&list, "list", false, "show the keys and change nothing")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	group := &cobra.Command{Use: "rotate", Short: "Replace keys of the installation"}
	group.AddCommand(cmd)
	return group
}
