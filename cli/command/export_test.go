package command

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Visible returns the visible flags of all commands, by name.
func Visible() map[string]string {
	out := map[string]string{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) {
				if !f.Hidden {
					out[f.Name] = f.Value.Type()
				}
			})
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&cli{IO: IO{Env: func(string) string { return "" }}}).root())
	return out
}

// Showing returns the command lines of the commands that have the flag --output.
func Showing() (out []string) {
	var walk func(cmd *cobra.Command, path string)
	walk = func(cmd *cobra.Command, path string) {
		if cmd.Flags().Lookup("output") != nil {
			out = append(out, path)
		}
		for _, sub := range cmd.Commands() {
			walk(sub, path+" "+sub.Name())
		}
	}
	for _, cmd := range (&cli{IO: IO{Env: func(string) string { return "" }}}).root().Commands() {
		walk(cmd, cmd.Name())
	}
	return out
}
