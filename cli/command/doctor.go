package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/internal/build"
)

// checked is one check of doctor.
type checked struct {
	Name   string `json:"check"`
	Result string `json:"result"` // ok, warning, failed
	Text   string `json:"text"`   // what was found, or the cause
	Fix    string `json:"fix,omitempty"`
}

const (
	checkOK     = "ok"
	checkWarns  = "warning"
	checkFailed = "failed"
)

func passed(name, format string, args ...any) checked {
	return checked{Name: name, Result: checkOK, Text: fmt.Sprintf(format, args...)}
}

func warned(name, fix, format string, args ...any) checked {
	return checked{name, checkWarns, fmt.Sprintf(format, args...), fix}
}

func failed(name, fix, format string, args ...any) checked {
	return checked{name, checkFailed, fmt.Sprintf(format, args...), fix}
}

func (c *cli) doctorCmd() *cobra.Command {
	var machine bool
	var role, server string
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check the way to the root, the sign-in, clusters and nodes, with a fix for each fault", Args: cobra.NoArgs,
		Long: `Check, in this order: the configuration of this program, the address, the certificate,
the clock, the versions, the sign-in, and what clusters and nodes that you may see report
of themselves. Each fault is printed with its cause and what mends it.

With --machine, check this machine as one that a node engine is to run on: the kernel,
the disk, control groups, the packet filter, containerd, virtual machines, the clock,
the MTU and the tunnel's device; with --for root or cluster, as one for these. --server
adds the way to the server that the machine is to join. With --wait, wait instead until
the daemons that are installed here are ready.

The command exits with 1 if a check failed; warnings do not count.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			var all []checked
			switch {
			case role != "node" && role != "cluster" && role != "root":
				return usage("--for %q: want node, cluster or root", role)
			case !machine && (cmd.Flags().Changed("for") || server != "" || wait != 0):
				return usage("--for, --server and --wait apply to --machine only")
			case wait > 0:
				all = awaitInstalled(cmd.Context(), role, wait)
			case machine:
				all = checkHost(role, server)
			default:
				all = c.examine(cmd.Context())
			}
			bad := false
			for _, k := range all {
				bad = bad || k.Result == checkFailed
			}
			if !p.ForPeople() {
				err = p.Object(api.Page[checked]{Items: all})
			} else {
				printChecks(p, all)
				if w, err := c.where(); err == nil && bad && w.URL != "" {
					fmt.Fprintf(p.Out, "\nMore about these checks: %s/docs/how-to/troubleshooting\n", strings.TrimSuffix(w.URL, "/"))
				}
			}
			if err == nil && bad {
				err = errReported
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&machine, "machine", false, "check this machine as one for a daemon")
	cmd.Flags().StringVar(&role, "for", "node", "with --machine, what the machine is for: node, cluster or root")
	cmd.Flags().StringVar(&server, "server", "", "with --machine, https://host:port of the server that it is to join")
	cmd.Flags().DurationVar(&wait, "wait", 0, "with --machine, wait so long until the installed daemons are ready, and check nothing else")
	c.unnamedFlags(cmd)
	return cmd
}

func printChecks(p output.Printer, all []checked) {
	for _, k := range all {
		sign, style := "✔", output.Good
		switch k.Result {
		case checkWarns:
			sign, style = "!", output.Busy
		case checkFailed:
			sign, style = "✗", output.Bad
		}
		fmt.Fprintf(p.Out, "%s %-13s %s\n", p.Paint(style, sign), k.Name, output.Clean(k.Text))
		if k.Fix != "" {
			fmt.Fprintf(p.Out, "  %-13s fix: %s\n", "", output.Clean(k.Fix))
		}
	}
}

// examineTime limits one step of doctor.
const examineTime = 10 * time.Second

// maxSkew is how much the clocks may differ before tokens are refused.
const maxSkew = 30 * time.Second

// examine checks one step after the other, until one fails on which the following depend.
func (c *cli) examine(ctx context.Context) (all []checked) {
	add := func(k checked) bool {
		all = append(all, k)
		return k.Result != checkFailed
	}
	w, err := c.where()
	if err != nil {
		add(failed("configuration", "sign in with treeline login URL, or repair "+c.config, "%v", err))
		return all
	}
	add(passed("configuration", "context %s in %s", cmp.Or(w.Name, "from flags and environment"), c.config))
	u, err := url.Parse(w.URL)
	if err != nil || u.Host == "" || u.Scheme != "https" {
		add(failed("address", "sign in again with treeline login https://HOST:PORT", "%q is not https://host:port", w.URL))
		return all
	}
	if !add(checkAddress(ctx, u)) {
		return all
	}
	a, err := c.api()
	if err != nil {
		add(failed("certificate", "give the CA again: treeline login --ca FILE", "%v", err))
		return all
	}
	header, k := c.checkCertificate(ctx, a, u, w.CA != "")
	if !add(k) {
		return all
	}
	add(c.checkClock(header))
	add(c.checkVersion(ctx, a))
	if w.Cluster != "" {
		s, err := a.Status(ctx)
		if err != nil {
			add(failed("sign-in", "sign in again with the token in operator-token in the cluster's data directory: treeline login --cluster", "%v", err))
			return all
		}
		add(passed("sign-in", "operator of cluster %s", w.Cluster))
		if !s.Root {
			add(warned("root", "on the cluster's machine: journalctl -u treeline-cluster", "the cluster is not connected to its root"))
		}
		all = append(all, checkSnapshots(ctx, a)...)
		all = append(all, checkRestore(ctx, a)...)
		return append(all, c.checkNodes(ctx, a, w.Cluster)...)
	}
	me, err := a.WhoAmI(ctx)
	if err != nil {
		add(failed("sign-in", "sign in again with treeline login; a lost password: an administrator runs treeline user invite", "%v", err))
		return all
	}
	add(passed("sign-in", "%s (%s)", me.User, strings.Join(me.Roles, ", ")))
	all = append(all, checkSnapshots(ctx, a)...)
	all = append(all, checkRestore(ctx, a)...)
	return append(all, c.checkClusters(ctx, a)...)
}

func checkAddress(ctx context.Context, u *url.URL) checked {
	ctx, cancel := context.WithTimeout(ctx, examineTime)
	defer cancel()
	at := u.Host
	if u.Port() == "" {
		at = net.JoinHostPort(u.Hostname(), "443")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return failed("address", "check the spelling and this machine's DNS, or use the IP address with --addr", "the name %s has no address: %v", u.Hostname(), err)
	case err != nil:
		return failed("address", "check that the root runs (journalctl -u treeline-root) and that no firewall is between", "%s does not answer: %v", at, err)
	}
	at = conn.RemoteAddr().String()
	_ = conn.Close()
	return passed("address", "%s answers at %s", u.Host, at)
}

// checkCertificate returns the headers of an answer that came over a connection with the right certificate.
func (c *cli) checkCertificate(ctx context.Context, a *client.Client, u *url.URL, pinned bool) (http.Header, checked) {
	ctx, cancel := context.WithTimeout(ctx, examineTime)
	defer cancel()
	resp, err := a.Raw(ctx, client.Request{Method: http.MethodGet, Path: "/version", Open: true})
	if err != nil {
		return nil, failed("certificate", "if the installation was made anew, sign in again with treeline login --ca FILE or --pin HASH; otherwise somebody is between", "%v", err)
	}
	_ = resp.Body.Close()
	text := "is trusted by this system"
	if pinned {
		text = "is below the pinned CA"
	}
	if resp.TLS != nil && len(resp.TLS.PeerCertificates) > 0 {
		return resp.Header, c.expiry(resp.TLS, u, text)
	}
	return resp.Header, passed("certificate", "%s", text)
}

func (c *cli) expiry(state *tls.ConnectionState, u *url.URL, text string) checked {
	end := state.PeerCertificates[0].NotAfter
	left := end.Sub(c.Now())
	if life := end.Sub(state.PeerCertificates[0].NotBefore); left < life/10 {
		return warned("certificate", "certificates are renewed at two thirds of their life: look into the log of "+u.Host, "%s, but ends in %s", text, output.Duration(left))
	}
	return passed("certificate", "%s, until %s", text, end.Local().Format(time.DateTime))
}

func (c *cli) checkClock(h http.Header) checked {
	there, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return warned("clock", "", "unknown: the answer has no date")
	}
	skew := c.Now().Sub(there)
	if skew.Abs() > maxSkew {
		return failed("clock", "set the clock, for example with systemd-timesyncd or chrony", "this machine's clock differs by %s from the server's; tokens and certificates need %s or less", output.Duration(skew.Abs()), maxSkew)
	}
	return passed("clock", "differs by %s from the server's", output.Duration(skew.Abs()))
}

func (c *cli) checkVersion(ctx context.Context, a *client.Client) checked {
	mine := build.Current()
	there := c.rootVersion(ctx)
	switch {
	case there == nil:
		return warned("version", "", "treeline %s; the server's is unknown", mine.Version)
	case there.Version != mine.Version:
		return warned("version", "use the treeline of the server's release; neighbouring releases work together", "treeline %s, the server %s", mine.Version, there.Version)
	}
	return passed("version", "%s on both sides", mine.Version)
}

// checkSnapshots checks the scheduled snapshots. Users who may not read their state get no check.
func checkSnapshots(ctx context.Context, a *client.Client) []checked {
	var s api.SnapshotSchedule
	_, err := a.Do(ctx, client.Request{Method: http.MethodGet, Path: schedulePath}, &s)
	const fix = "see treeline snapshot schedule; when the cause is mended, treeline snapshot schedule --now"
	switch {
	case errors.Is(err, api.ErrForbidden) || errors.Is(err, api.ErrNotFound): // ErrNotFound: an earlier release
		return nil
	case err != nil:
		return []checked{warned("snapshots", "repeat treeline doctor", "the state of scheduled snapshots cannot be read: %s", err)}
	case s.Cron == "":
		return nil
	case s.Overdue:
		return []checked{failed("snapshots", fix, "the last good scheduled snapshot is too old: %s", cmp.Or(s.Error, "none was taken"))}
	case s.Error != "":
		return []checked{warned("snapshots", fix, "the last scheduled snapshot failed: %s", s.Error)}
	case len(s.Taken) == 0:
		return []checked{passed("snapshots", "the first scheduled one is due at %s", s.Next.Local().Format(time.DateTime))}
	}
	return []checked{passed("snapshots", "%s in %s, the last one of %s", output.Plural(len(s.Taken), "scheduled one"), s.To, s.Taken[0].Time.Local().Format(time.DateTime))}
}

// checkRestore finds a root or cluster that was restored and does not continue yet. Users who may not read it get no check.
func checkRestore(ctx context.Context, a *client.Client) []checked {
	var s api.RestoreState
	if _, err := a.Do(ctx, client.Request{Method: http.MethodGet, Path: "/v1/system/restore"}, &s); err != nil || !s.Held {
		return nil
	}
	var waits []string
	if n := len(s.Unknown); n > 0 {
		waits = append(waits, output.Plural(n, "instance")+" without a record")
	}
	if s.AwaitsRoot {
		waits = append(waits, "the root has not sent what it wants")
	}
	if n := len(s.Silent); n > 0 {
		waits = append(waits, output.Plural(n, "silent cluster"))
	}
	if n := len(s.SilentNodes); n > 0 {
		waits = append(waits, output.Plural(n, "silent node"))
	}
	if len(waits) == 0 {
		waits = []string{"the restore is not accepted"}
	}
	return []checked{warned("restore", "treeline snapshot accept shows what stops, and asks",
		"restored from the snapshot of %s, and changes nothing yet: %s", s.Taken.Local().Format(time.DateTime), strings.Join(waits, ", "))}
}

func (c *cli) checkClusters(ctx context.Context, a *client.Client) (all []checked) {
	clusters, _, err := a.Clusters(ctx, client.ListOptions{})
	if errors.Is(err, api.ErrForbidden) {
		return nil
	}
	if err != nil {
		return []checked{failed("clusters", "see treeline get clusters", "%v", err)}
	}
	for _, cl := range clusters {
		name := "cluster " + string(cl.ID)
		switch {
		case cl.Status == api.ClusterSilent:
			all = append(all, failed(name, "on its machine: systemctl status treeline-cluster; check that it reaches the root", "it was last heard %s", cl.Heard.Local().Format(time.DateTime)))
			continue
		case cl.NetworkError != "":
			all = append(all, warned(name, "see treeline describe cluster "+string(cl.ID), "%s", cl.NetworkError))
		default:
			all = append(all, passed(name, "%s, %s", cl.Status, output.Plural(cl.Aggregate.Nodes, "node")))
		}
		all = append(all, c.checkNodes(ctx, a, cl.ID)...)
	}
	return all
}

func (c *cli) checkNodes(ctx context.Context, a *client.Client, id api.ClusterID) (all []checked) {
	nodes, err := c.nodes(ctx, a, id)
	if errors.Is(err, api.ErrForbidden) || errors.Is(err, api.ErrNotFound) {
		return nil
	}
	if err != nil {
		return []checked{failed("nodes of "+string(id), "see treeline describe cluster "+string(id), "%v", err)}
	}
	for _, n := range nodes {
		name := "node " + string(n.ID)
		fix := "on its machine: journalctl -u treeline-node, and treeline doctor --machine"
		switch {
		case n.Status == api.NodeSilent:
			all = append(all, failed(name, "on its machine: systemctl status treeline-node; check that it reaches the cluster", "it was last heard %s", n.Heard.Local().Format(time.DateTime)))
		case n.RuntimeError != "":
			all = append(all, failed(name, fix, "its runtime does not work: %s", n.RuntimeError))
		case n.NetworkError != "":
			all = append(all, failed(name, "on its machine: journalctl -u treeline-net, and treeline doctor --machine", "its overlay network is not ready: %s", n.NetworkError))
		case n.Status != api.NodeReady:
			all = append(all, warned(name, "treeline uncordon "+string(id)+"/"+string(n.ID), "it is %s and gets no instances", n.Status))
		default:
			all = append(all, passed(name, "%s, heard %s", n.Status, n.Heard.Local().Format(time.DateTime)))
		}
	}
	return all
}
