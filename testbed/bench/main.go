package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/treeline-edge/treeline/testbed/bench/netbench"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// bench is one benchmark. It emits records as they are finished.
type bench struct {
	about string
	n     int // default number of samples
	run   func(*run) error
}

var benches = map[string]bench{
	"access":    {"round trip of an exec and throughput of a port-forward, compared with TLS on the node's link", 15, accessToWorkloads},
	"deploy":    {"submit → running, compared with containerd's create and start", 40, deploy},
	"recovery":  {"from a kill of each kind of process until everything has recovered", 30, recovery},
	"idle":      {"memory, CPU and traffic of an idle node engine", 30, idle},
	"loss":      {"a cluster is lost with 1,000 instances: until they run elsewhere, compared with a start of as many", 5, clusterLoss},
	"takeover":  {"from the end of the active root, killed or stopped, until the standby has acknowledged a write", 15, takeOvers},
	"standbys":  {"writes a second at the active root with two standbys, compared with none, and the age of reads at a standby", 20, standbyCost},
	"cluster":   {"memory and CPU of a cluster orchestrator with 1,000 nodes", 30, clusterLoad},
	"store":     {"durable saves of the embedded store, compared with bbolt", 30, storeSaves},
	"bus":       {"messages through the embedded broker, compared with TLS alone", 30, busMessages},
	"flood":     {"a new connection with a request during 10,000 silent ones, compared with net/http", 200, flood},
	"place":     {"time to choose among candidates", 30, place},
	"fig2":      {"decisions at both tiers for 45 workers in 1 to 45 clusters, as in the Oakestra paper", 5, fig2},
	"fig10":     {"decisions of ROM and LDP among 50 to 10,000 workers, as in the Oakestra paper and beyond", 30, fig10},
	"updown":    {"300 instances of one application deployed and deleted repeatedly, and what the daemons keep", 10, upDown},
	"sim":       {"seeds of the simulator a second", 30, simSeeds},
	"route":     {"from the time a new instance listens until its first answer to a client on another node", 30, routes},
	"cold":      {"first byte from a service of which no instance runs, compared with containerd's create and start", 30, coldStarts},
	"health":    {"1,000 health checks a second, compared with bare requests", 12, healthChecks},
	"ready":     {"from a passed readiness check until the first answer to a client on another node", 100, readyRoutes},
	"dashboard": {"navigation → the dashboard is interactive in Chromium, compared with an empty page", 20, dashboard},
	"watchers":  {"how late 1,000 watchers see a change each second, and the root's CPU", 60, changeWatchers},
	"net":       {"data paths between containers, compared with the kernel and others", 5, network},
}

// run is a run of one benchmark.
type run struct {
	ctx  context.Context
	n    int
	emit func(Record)
	log  io.Writer
	net  netOptions
}

func (r *run) logf(format string, args ...any) { _, _ = fmt.Fprintf(r.log, format+"\n", args...) }

func main() {
	lab.Main()
	netbench.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	lab.Forget()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// Main is the program. It writes results to out and messages to log.
func Main(ctx context.Context, args []string, out, log io.Writer) error {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(log)
	asJSON := fs.Bool("json", false, "write one JSON object per line, to the file F.json if it is the next argument")
	n := fs.Int("n", 0, "number of samples (default: depends on the benchmark)")
	fs.IntVar(n, "samples", 0, "the same as -n")
	var net netOptions
	fs.StringVar(&net.rows, "rows", "", "net: only these rows: names or patterns, separated by commas")
	fs.BoolVar(&net.quick, "quick", false, "net: one short sample of each row, without limits")
	fs.StringVar(&net.svg, "svg", "", "net, fig2, fig10: draw the figures to this file")
	helper := fs.String("swarm", "", "") // see swarm.go
	fs.Usage = func() { usage(log) }
	var names []string
	file := "" // for JSON
	for rest := args; ; {
		if err := fs.Parse(rest); err != nil {
			return err
		}
		if fs.NArg() == 0 {
			break
		}
		if arg := fs.Arg(0); *asJSON && filepath.Ext(arg) == ".json" {
			file = arg
		} else {
			names = append(names, arg)
		}
		rest = fs.Args()[1:]
	}
	if *helper != "" {
		return swarm(ctx, *helper)
	}
	if slices.Equal(names, []string{"all"}) {
		names = slices.Sorted(maps.Keys(benches))
	}
	if len(names) == 0 {
		usage(log)
		return flag.ErrHelp
	}
	for _, name := range names {
		if _, ok := benches[name]; !ok {
			return fmt.Errorf("unknown benchmark %q, want one of %s", name, strings.Join(slices.Sorted(maps.Keys(benches)), ", "))
		}
	}
	if file != "" {
		f, err := os.Create(file)
		if err != nil {
			return fmt.Errorf("create the output file: %w", err)
		}
		defer f.Close()
		out = f
	}
	emit := printer(out, *asJSON)
	for _, name := range names {
		b := benches[name]
		r := &run{ctx: ctx, n: b.n, log: log, emit: emit, net: net}
		if *n > 0 {
			r.n = *n
		}
		if err := b.run(r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func usage(w io.Writer) {
	_, _ = fmt.Fprint(w, "usage: bench NAME … [--json [F.json]] [-n SAMPLES]\n\n")
	for _, name := range slices.Sorted(maps.Keys(benches)) {
		_, _ = fmt.Fprintf(w, "  %-9s %s\n", name, benches[name].about)
	}
	_, _ = fmt.Fprintf(w, "  %-9s all benchmarks\n", "all")
}
