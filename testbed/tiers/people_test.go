package tiers

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/treeline-edge/treeline/cli/command"
	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/daemon"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// people are the scripts of testdata/people in their order, each of one role. They share an
// installation, which the later ones find as the earlier ones left it.
var people = []string{"administrator", "operator", "developer", "provider", "away"}

// TestPeopleDoTheirWork runs the scripts of people against real daemons. Besides the commands of
// testscript, they use:
//
//	treeline ARG… [<FILE] [>FILE]   the CLI, with the files as stdin and stdout
//	code N                          the exit code of the command before it
//	eventually REGEXP treeline ARG… repeats the command until its output matches
//	paste FILE [<FILE]              runs the command line that FILE begins with; the rest of FILE is typed
//	cluster-orchestrator NAME FILE  starts a cluster with the join token in a file
//	node-engine NAME FILE           starts a node with the join token in a file
//	halt NAME                       stops a daemon; the root's name is root
//	restart NAME                    stops the cluster or a node, unless halt has, and starts it again
func TestPeopleDoTheirWork(t *testing.T) {
	r := startRoot(t, func(*root.Config) {})
	in := &peopled{t: t, root: r, shared: t.TempDir(), running: map[string]*life{"root": r.life}, nodes: map[string]node.Config{}}
	files, err := filepath.Glob("testdata/people/*.txtar")
	check(t, err)
	if len(files) != len(people) {
		t.Errorf("testdata/people has %d scripts, the order names %d", len(files), len(people))
	}
	back, err := os.Getwd()
	check(t, err)
	for _, name := range people {
		if t.Failed() {
			return
		}
		t.Run(name, func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Files: []string{filepath.Join("testdata/people", name+".txtar")},
				Setup: func(e *testscript.Env) error {
					for k, v := range map[string]string{
						"ROOT": r.url, "CA": filepath.Join(r.cfg.Data, root.CAFile), "SHARED": in.shared,
						"MUNICH": in.at, "XDG_CONFIG_HOME": e.WorkDir,
					} {
						e.Setenv(k, v)
					}
					e.Defer(func() { check(in.t, os.Chdir(back)) })
					return os.Chdir(e.WorkDir)
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"treeline": in.treeline, "code": in.sameCode, "eventually": in.eventually, "paste": in.paste,
					"cluster-orchestrator": in.startCluster, "node-engine": in.startNode, "halt": in.halt, "restart": in.restart,
				},
			})
		})
	}
}

// peopled is an installation that scripts use.
type peopled struct {
	t       *testing.T
	root    *realRoot
	shared  string // directory of the files that scripts leave to later ones
	at      string // address of the cluster munich
	running map[string]*life
	munich  *tier
	nodes   map[string]node.Config
	code    int // of the last command line
}

// redirected splits arguments into those of the command and the files for stdin and stdout.
func redirected(all []string) (args []string, in, out string) {
	for _, a := range all {
		switch {
		case len(a) > 1 && a[0] == '<':
			in = a[1:]
		case len(a) > 1 && a[0] == '>':
			out = a[1:]
		default:
			args = append(args, a)
		}
	}
	return args, in, out
}

func (p *peopled) run(ts *testscript.TestScript, stdin string, args []string, out io.Writer) {
	p.code = command.Main(p.t.Context(), args, command.IO{
		In: strings.NewReader(stdin), Out: out, Err: ts.Stderr(), Now: time.Now, Env: ts.Getenv,
	})
}

func (p *peopled) treeline(ts *testscript.TestScript, neg bool, all []string) {
	args, in, to := redirected(all)
	stdin := ""
	if in != "" {
		stdin = ts.ReadFile(in)
	}
	var out strings.Builder
	p.run(ts, stdin, args, &out)
	p.judge(ts, neg, args)
	if to == "" {
		_, _ = io.WriteString(ts.Stdout(), out.String())
		return
	}
	ts.Check(os.WriteFile(ts.MkAbs(to), []byte(out.String()), 0o600))
}

func (p *peopled) judge(ts *testscript.TestScript, neg bool, args []string) {
	if (p.code != 0) != neg {
		ts.Fatalf("treeline %s: exit %d", strings.Join(args, " "), p.code)
	}
}

func (p *peopled) sameCode(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 || args[0] != strconv.Itoa(p.code) {
		ts.Fatalf("exit %d, want %v", p.code, args)
	}
}

func (p *peopled) eventually(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 3 || args[1] != "treeline" {
		ts.Fatalf("eventually: want a regular expression and a command line of treeline")
	}
	want := regexp.MustCompile("(?m)" + args[0])
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var out strings.Builder
		p.run(ts, "", args[2:], &out)
		if want.MatchString(out.String()) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%v: exit %d and\n%s", args, p.code, out.String())
		}
	}
}

func (p *peopled) paste(ts *testscript.TestScript, neg bool, args []string) {
	args, in, _ := redirected(args)
	if len(args) != 1 {
		ts.Fatalf("paste: want one file")
	}
	line, typed, _ := strings.Cut(strings.TrimSpace(ts.ReadFile(args[0])), "\n")
	words := strings.Fields(line)[1:]
	typed += "\n"
	if in != "" {
		typed += ts.ReadFile(in)
		words = append(words, "--password-stdin")
	}
	p.run(ts, typed, words, ts.Stdout())
	p.judge(ts, neg, words)
}

func (p *peopled) startCluster(ts *testscript.TestScript, _ bool, args []string) {
	c := newCluster(p.t, p.root.anchor(p.t), strings.TrimSpace(ts.ReadFile(args[1])))
	c.cfg.Name = args[0]
	check(p.t, c.cfg.Validate())
	p.munich = c
	p.runCluster()
	p.at = strings.TrimSpace(wait(p.t, filepath.Join(c.cfg.Data, cluster.AddressFile)))
	ts.Setenv("MUNICH", p.at)
	token := wait(p.t, filepath.Join(c.cfg.Data, cluster.OperatorFile))
	ts.Check(os.WriteFile(filepath.Join(p.shared, args[0]+".operator-token"), []byte(token), 0o600))
}

func (p *peopled) runCluster() {
	cfg := p.munich.cfg
	p.running[cfg.Name] = begin(p.t, func(ctx context.Context) error { return cluster.Run(ctx, cfg, quiet(p.t)) })
}

func (p *peopled) restart(ts *testscript.TestScript, neg bool, args []string) {
	p.halt(ts, neg, args)
	if _, ok := p.nodes[args[0]]; ok {
		p.runNode(args[0])
		return
	}
	p.munich.cfg.Listen, p.munich.cfg.Token = p.at, ""
	p.runCluster()
}

func (p *peopled) startNode(ts *testscript.TestScript, _ bool, args []string) {
	cfg := node.Defaults()
	cfg.Data, cfg.Name, cfg.CPUs, cfg.Memory, cfg.Fake = filepath.Join(p.t.TempDir(), "n"), args[0], 4, 4096, newRuntime()
	cfg.Token = daemon.Secret(strings.TrimSpace(ts.ReadFile(args[1])))
	p.nodes[args[0]] = cfg
	p.runNode(args[0])
}

func (p *peopled) runNode(name string) {
	cfg := p.nodes[name]
	p.running[name] = begin(p.t, func(ctx context.Context) error {
		err := node.Run(ctx, cfg, quiet(p.t))
		if errors.Is(err, node.ErrLeft) || ctx.Err() != nil { // the end may interrupt a purge
			return nil
		}
		return err
	})
}

func (p *peopled) halt(ts *testscript.TestScript, _ bool, args []string) {
	l, ok := p.running[args[0]]
	if !ok {
		ts.Fatalf("no daemon is called %s", args[0])
	}
	l.stop()
}
