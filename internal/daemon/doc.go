// Package daemon is shared by all daemons: configuration, logs, health, exit codes, and parts that
// run and end together. It imports no adapter and no metrics (see package metrics), so that a
// node's daemons stay small.
//
//	func main() {
//		daemon.Main("node-engine", defaults, func(ctx context.Context, cfg Config, log *slog.Logger) error {
//			return daemon.RunAll(ctx, daemon.Part{Name: "link", Run: link.Run}, …)
//		})
//	}
package daemon
