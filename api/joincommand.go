package api

import (
	"fmt"
	"regexp"
)

// Installer says where a machine that joins gets install.sh, and the hash that it must have.
type Installer struct {
	URL    string `json:"url"`    // https://host:port
	SHA256 string `json:"sha256"` // of install.sh, which has the hashes of the programs
}

var (
	plainToken = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	plainURL   = regexp.MustCompile(`^https://[A-Za-z0-9.:-]{1,250}$|^https://\[[0-9a-fA-F.:]{2,45}\](:[0-9]{1,5})?$`)
	plainHash  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// JoinCommand returns the line of a shell that joins a machine. With Install it also installs the
// programs: it fetches install.sh without authentication, compares its hash, and runs it. The token
// is on stdin, because other users of the machine can read arguments. It fails with ErrInvalid if a
// part could have another meaning in a shell.
func (t JoinToken) JoinCommand() (string, error) {
	if !plainToken.MatchString(t.Token) || t.Cluster != "" && !ValidMachineName(string(t.Cluster)) {
		return "", fmt.Errorf("join token %q for %q is malformed: %w", t.ID, t.Cluster, ErrInvalid)
	}
	program, args := "node-engine", "node"
	if t.Kind != "node" {
		name := string(t.Cluster)
		if name == "" {
			name = "NAME"
		}
		program, args = "cluster-orchestrator --name "+name, "cluster --name "+name
	}
	if t.Install == nil {
		return "echo " + t.Token + " | " + program + " --token-file -", nil
	}
	if !plainURL.MatchString(t.Install.URL) || !plainHash.MatchString(t.Install.SHA256) {
		return "", fmt.Errorf("join token %q: %q with the hash %q is no place of install.sh: %w", t.ID, t.Install.URL, t.Install.SHA256, ErrInvalid)
	}
	script := t.Install.URL + "/install.sh"
	return "f=$(mktemp -d)/install.sh && { curl -gfsSko $f " + script + " || wget -qO $f --no-check-certificate " + script + "; } && " +
		"echo '" + t.Install.SHA256 + "  '$f | sha256sum -c && echo " + t.Token + " | sh $f " + args + " --token-file -", nil
}
