package command

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// inherited is the section that cobra repeats in each command.
var inherited = regexp.MustCompile("(?s)### Options inherited from parent commands\n\n```.*?```\n\n")

// Reference returns a page in Markdown with all commands and flags.
func Reference() ([]byte, error) {
	env := map[string]string{"HOME": "~"}
	root := (&cli{IO: IO{Env: func(k string) string { return env[k] }}}).root()
	root.DisableAutoGenTag = true
	root.InitDefaultCompletionCmd()
	var out bytes.Buffer
	var write func(cmd *cobra.Command) error
	write = func(cmd *cobra.Command) error {
		if !cmd.IsAvailableCommand() && cmd.HasParent() || cmd.Name() == "help" {
			return nil
		}
		cmd.InitDefaultHelpFlag()
		var section bytes.Buffer
		link := func(page string) string {
			return "#" + strings.ReplaceAll(strings.TrimSuffix(page, ".md"), "_", "-")
		}
		if err := doc.GenMarkdownCustom(cmd, &section, link); err != nil {
			return fmt.Errorf("describe %s: %w", cmd.CommandPath(), err)
		}
		out.Write(inherited.ReplaceAll(section.Bytes(), nil))
		for _, sub := range cmd.Commands() {
			if err := write(sub); err != nil {
				return err
			}
		}
		return nil
	}
	err := write(root)
	return out.Bytes(), err
}

func (c *cli) manCmd() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages of all commands to a directory", Args: cobra.ExactArgs(1),
		Example: "  treeline man /usr/local/share/man/man1",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("create the directory of the manual: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			date := time.Unix(0, 0).UTC() // the pages of a release are the same everywhere
			if err := doc.GenManTree(root, &doc.GenManHeader{Title: "TREELINE", Section: "1", Source: "Treeline", Date: &date}, args[0]); err != nil {
				return fmt.Errorf("write the manual: %w", err)
			}
			c.say("manual pages written to %s", args[0])
			return nil
		},
	}
}
