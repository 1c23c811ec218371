package command

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/tracing"
)

// traced begins the trace of a command, if OTEL_EXPORTER_OTLP_ENDPOINT asks for one, and adds it to the
// command's requests. end exports the command's span. With TRACEPARENT the command belongs to that trace, such
// as one of a build.
func traced(ctx context.Context, stdio IO) (_ context.Context, end func(*cobra.Command, error), err error) {
	env := stdio.Env
	if env == nil {
		env = func(string) string { return "" }
	}
	t, err := tracing.FromEnv("treeline-cli", env, slog.New(slog.NewTextHandler(stdio.Err, nil)))
	if err != nil {
		return ctx, nil, usage("%v", err)
	}
	parent := tracing.Parse(env("TRACEPARENT"))
	if t == nil {
		return client.WithTrace(ctx, parent.String()), func(*cobra.Command, error) {}, nil
	}
	began, span := time.Now(), tracing.New()
	if !parent.IsZero() {
		span = parent.Child("command", began.String())
	}
	return client.WithTrace(ctx, span.String()), func(cmd *cobra.Command, err error) {
		t.Emit(tracing.Span{
			Context: span, Parent: parent, Name: cmd.CommandPath(), Kind: tracing.Client, Start: began, End: time.Now(), Err: err, Tenant: api.Tenant("cli"),
		})
		t.Flush(context.WithoutCancel(ctx))
		fmt.Fprintf(stdio.Err, "trace %s\n", span.Trace())
	}, nil
}
