package command

import (
	"context"
	"errors"
	"net/url"
	"os/exec"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
)

func (c *cli) uiCmd() *cobra.Command {
	var bare bool
	cmd := &cobra.Command{
		Use: "ui [APP|SERVICE|INSTANCE|CLUSTER]", Short: "Open the dashboard in the browser, at the page of an object", Args: cobra.MaximumNArgs(1),
		Long: `Open the dashboard in the browser, at the page of an application, service, instance
or cluster. The URL contains no session: sign in on the page. With --print, or on a
machine without a browser, the command prints the URL only.`,
		Example:           "  treeline ui shop/web\n  treeline ui shop/web#0 --print",
		ValidArgsFunction: c.complete("apps", "services", "instances", "clusters"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			w, err := c.where()
			if err != nil {
				return err
			}
			page := ""
			if len(args) > 0 {
				if page, err = c.page(ctx, a, args[0]); err != nil {
					return err
				}
			}
			link := w.URL + "/ui/" + page
			if !bare && c.Browse != nil {
				if err := c.Browse(link); err == nil {
					c.say("opened %s", link)
					return nil
				}
				c.say("no browser on this machine; open this page elsewhere:")
			}
			p.Printf("%s", link)
			return nil
		}),
	}
	cmd.Flags().BoolVar(&bare, "print", false, "print the URL only")
	return cmd
}

// page returns the fragment of the page of an object in the dashboard.
func (c *cli) page(ctx context.Context, a *client.Client, reference string) (string, error) {
	if c.own() != "" { // it shows instances and nodes
		i, err := instanceKind.find(ctx, c, reference)
		return "#/instance/" + url.PathEscape(string(i.ID)), err
	}
	id, err := c.findAny(ctx, reference)
	if errors.Is(err, api.ErrNotFound) {
		if cl, failed := a.Cluster(ctx, api.ClusterID(reference)); failed == nil {
			return "#/cluster/" + url.PathEscape(string(cl.ID)), nil
		}
	}
	if err != nil {
		return "", err
	}
	kind := "app"
	if strings.Contains(id, "#") {
		kind = "instance"
	} else if api.ServiceID(id).App().Tenant() != "" {
		kind = "service"
	}
	return "#/" + kind + "/" + url.PathEscape(id), nil
}

// browse opens a URL in the user's browser.
func browse(link string) error {
	program, args := "xdg-open", []string{link}
	switch runtime.GOOS {
	case "darwin":
		program = "open"
	case "windows":
		program, args = "rundll32", []string{"url.dll,FileProtocolHandler", link}
	}
	return exec.Command(program, args...).Run()
}
