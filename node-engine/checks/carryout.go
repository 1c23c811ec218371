package checks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/node/health"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// reuse is how long a connection is used for further checks. New connections in between find out that
// the workload does not accept them any more.
const reuse = 10 * time.Second

var past = time.Unix(1, 0)

// kept is a connection that is kept for the next check.
type kept struct {
	net.Conn          // with TLS, if the check uses it
	raw      net.Conn // of TCP
	opened   time.Time
}

// Close closes the connection at once. It does not write the end of TLS, which may block.
func (k *kept) Close() error { return k.raw.Close() }

// take returns the connection that was kept for a check, nil: none.
func (c *Checks) take(t *target, kind api.CheckKind) *kept {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := t.kept[kind]
	delete(t.kept, kind)
	return k
}

// keep keeps a connection for the next check, or closes it.
func (c *Checks) keep(t *target, kind api.CheckKind, k *kept, interval time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.kept == nil || time.Since(k.opened)+interval > reuse {
		_ = k.Close()
		return
	}
	t.kept[kind] = k
}

// carryOut carries out one check.
func (c *Checks) carryOut(t *target, kind api.CheckKind, check api.Check) health.Result {
	timeout := time.Duration(check.Timeout) * time.Second
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	var err error
	switch {
	case check.HTTP != nil:
		err = c.get(ctx, t, kind, check)
	case check.TCP != nil:
		var f *os.File
		if f, err = c.connect(ctx, t, check.TCP.Port); err == nil {
			_ = f.Close()
		}
	case check.GRPC != nil:
		err = c.call(ctx, t, check.GRPC)
	default:
		err = c.execute(ctx, t, check.Command)
	}
	return resultOf(t, err, timeout)
}

// resultOf returns the result of a check that ended with err.
func resultOf(t *target, err error, timeout time.Duration) health.Result {
	switch {
	case err == nil:
		return health.Result{Passed: true}
	case t.ctx.Err() != nil:
		return health.Result{Unknown: true}
	case errors.Is(err, errNoPlace), errors.Is(err, errNoSocket), errors.Is(err, errNoCommand):
		return health.Result{Unknown: true, Text: err.Error()}
	}
	return health.Result{Text: explain(err, timeout)}
}

// explain returns an error of a check for people.
func explain(err error, timeout time.Duration) string {
	var code syscall.Errno
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("no answer within %s", timeout)
	case errors.As(err, &code):
		return code.Error() // without the address, which the name of the check has
	}
	return line(err.Error())
}

// maxLine limits what a verdict has of a workload's output.
const maxLine = 200

// line returns the first line of a text without control characters, and limits its length.
func line(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if len(s) > maxLine {
		s = s[:maxLine]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// maxGRPC limits the messages and headers of a workload's gRPC answer, in bytes.
const maxGRPC = 16 << 10

// call calls grpc.health.v1.Health/Check.
func (c *Checks) call(ctx context.Context, t *target, check *api.GRPCCheck) error {
	dialled := make(chan error, 1)
	conn, err := grpc.NewClient("passthrough:///workload",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := c.dial(ctx, t, check.Port)
			if err != nil {
				select {
				case dialled <- err:
				default:
				}
			}
			return conn, err
		}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithMaxHeaderListSize(maxGRPC),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxGRPC)), grpc.WithUserAgent(userAgent),
	)
	if err != nil {
		return err
	}
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: check.Service})
	_ = conn.Close()
	var refused error
	select {
	case refused = <-dialled:
	default:
	}
	switch code := status.Code(err); {
	case err == nil && answer.Status == grpc_health_v1.HealthCheckResponse_SERVING:
		return nil
	case err == nil:
		return fmt.Errorf("status %s", answer.Status)
	case refused != nil:
		return refused
	case ctx.Err() != nil:
		return ctx.Err()
	case code == codes.NotFound:
		return errors.New("the server does not know the service")
	case code == codes.Unimplemented:
		return errors.New("the server does not implement grpc.health.v1")
	default:
		return fmt.Errorf("gRPC status %s", code)
	}
}

// errNoCommand is the error of a command that could not be started because of the node.
var errNoCommand = errors.New("run a command in the workload")

// execute runs a command in the workload.
func (c *Checks) execute(ctx context.Context, t *target, args []string) error {
	e, ok := c.opt.Runtime.(runtime.Executor)
	if !ok {
		return fmt.Errorf("%w: the runtime does not support it", errNoCommand)
	}
	var out output
	p, err := e.Exec(ctx, t.Key, runtime.Process{Args: args, Stdout: &out, Stderr: &out})
	code := 0
	if err == nil {
		code, err = p.Wait(ctx)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, api.ErrNotFound), errors.Is(err, api.ErrUnavailable), err != nil && runtime.Reason(err) == api.ReasonRuntimeDown:
		return fmt.Errorf("%w: %w", errNoCommand, err)
	case err != nil:
		return err
	case code == 0:
		return nil
	}
	if said := line(out.String()); said != "" {
		return fmt.Errorf("exit code %d (%s)", code, said)
	}
	return fmt.Errorf("exit code %d", code)
}

// tlsOf returns a TLS client over a connection. It does not verify the certificate: the other end is the
// workload itself, in whose network namespace the connection is.
func tlsOf(ctx context.Context, conn net.Conn) (net.Conn, error) {
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // see above
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return secure, nil
}
