package lab

import (
	"os/exec"
	"path/filepath"
)

// CLI runs the real treeline as the admin and returns what it prints.
func (l *Lab) CLI(args ...string) string {
	l.t.Helper()
	out, err := l.TryCLI(args...)
	if err != nil {
		l.t.Fatalf("treeline %v: %v\n%s", args, err, out)
	}
	return out
}

// TryCLI is CLI with its error, which is an *exec.ExitError if treeline failed.
func (l *Lab) TryCLI(args ...string) (string, error) {
	l.t.Helper()
	out, err := l.Command(l.Access(), args...).CombinedOutput()
	return string(out), err
}

// Command returns treeline with an access token, which has not started.
func (l *Lab) Command(token string, args ...string) *exec.Cmd {
	l.t.Helper()
	ca := filepath.Join(l.rootData, "ca.pem")
	cmd := exec.Command(filepath.Join(Bin(l.t), "cli"), args...)
	cmd.Env = []string{
		"HOME=" + l.Dir, "TREELINE_ADDR=https://" + l.RootLink.Addr(), "TREELINE_CA=" + ca,
		"TREELINE_TOKEN=" + token, "TREELINE_TENANT=" + string(l.Tenant),
	}
	return cmd
}

// DescribeNode returns treeline's description of a node.
func (n *Node) DescribeNode() string {
	n.lab.t.Helper()
	return n.lab.CLI("describe", "node", string(n.ID), "--cluster", string(n.Cluster.ID))
}
