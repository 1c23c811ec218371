package command

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/cli/output"
)

// Where install.sh and the packages put the data of the daemons.
const dataDir = "/var/lib/treeline"

// ports are those that roots and clusters listen on without a configuration.
var ports = map[string]string{"root": "7443", "cluster": "7444"}

const (
	leastKernel = 5<<16 | 10<<8 // of the overlay network
	leastDisk   = 512           // MiB
)

// checkHost checks what the daemons of a role need, besides checkMachine.
func checkHost(role, server string) []checked {
	all := []checked{checkKernel(), checkDisk("/var/lib")}
	if role == "node" {
		all = append(all, checkMachine()...)
		all = append(all, checkTun("/dev/net/tun"))
	} else {
		all = append(all, checkSync(), checkPort(role))
	}
	if server != "" {
		all = append(all, checkServer(server)...)
	}
	return all
}

func checkKernel() checked {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return failed("kernel", "", "its version is unknown: %v", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return warned("kernel", "", "%s is no version", release)
	}
	if major<<16|minor<<8 < leastKernel {
		return failed("kernel", "upgrade the system's kernel, or install without the overlay network", "Linux %s, the overlay network needs 5.10", release)
	}
	return passed("kernel", "Linux %s", release)
}

// checkDisk checks the disk of a directory, or of its first parent that exists.
func checkDisk(dir string) checked {
	var s unix.Statfs_t
	for err := unix.Statfs(dir, &s); err != nil; err = unix.Statfs(dir, &s) {
		if dir == "/" {
			return failed("disk", "", "the free space is unknown: %v", err)
		}
		dir = filepath.Dir(dir)
	}
	free := int64(s.Bavail) * s.Bsize >> 20
	if free < leastDisk {
		return warned("disk", "free some space, or mount a disk there", "%d MiB are free in %s, below %d", free, dir, leastDisk)
	}
	return passed("disk", "%d MiB are free in %s", free, dir)
}

func checkTun(device string) checked {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if errors.Is(err, os.ErrPermission) {
		return warned("tun", "run treeline doctor --machine as root", "%s cannot be opened by this user", device)
	}
	if err != nil {
		return failed("tun", "modprobe tun; in a container, give it the device "+device, "no device for the tunnel to other nodes: %v", err)
	}
	_ = f.Close()
	return passed("tun", "%s can be opened", device)
}

// checkPort checks that the role's port is free, or belongs to an installed daemon.
func checkPort(role string) checked {
	port := ports[role]
	ln, err := net.Listen("tcp", ":"+port)
	if err == nil {
		_ = ln.Close()
		return passed("port", "%s is free", port)
	}
	if _, there := os.Stat(filepath.Join(dataDir, role, "address")); there == nil {
		return passed("port", "%s is in use, and a %s is installed", port, role)
	}
	return failed("port", "end the program that uses it (ss -ltnp), or set listen in /etc/treeline/"+role+".yaml", "%s cannot be used: %v", port, err)
}

// checkServer checks the way to the server that a machine is to join, and the clock. It trusts no
// answer and sends no secret; joining checks the server's certificate.
func checkServer(server string) []checked {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Scheme != "https" {
		return []checked{failed("server", "give https://host:port", "%q is no address of a server", server)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), examineTime)
	defer cancel()
	if k := checkAddress(ctx, u); k.Result == checkFailed {
		k.Name = "server"
		return []checked{k}
	}
	c := http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}, //nolint:gosec // see above
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, "https://"+u.Host+"/version", http.NoBody)
	if err != nil {
		return []checked{failed("server", "give https://host:port", "%v", err)}
	}
	began := time.Now()
	resp, err := c.Do(req)
	if err != nil {
		return []checked{failed("server", "check that no proxy or firewall is between", "%s does not speak HTTPS: %v", u.Host, err)}
	}
	_ = resp.Body.Close()
	clock := warned("clock", "", "unknown: the server's answer has no date")
	if there, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		clock = passed("clock", "as the server's")
		if skew := time.Since(there); skew.Abs() > maxSkew {
			clock = failed("clock", "set the clock, for example with systemd-timesyncd or chrony", "it differs by %s from the server's; certificates need %s or less", output.Duration(skew.Abs()), maxSkew)
		}
	}
	return []checked{passed("server", "%s answers in %s", u.Host, time.Since(began).Round(time.Millisecond)), clock}
}

// awaitInstalled waits until the installed daemons of a role are ready, at most for a time.
func awaitInstalled(ctx context.Context, role string, wait time.Duration) []checked {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		all, bad := checkInstalled(ctx, role), false
		for _, k := range all {
			bad = bad || k.Result == checkFailed
		}
		if !bad {
			return all
		}
		select {
		case <-ctx.Done():
			return checkInstalled(context.WithoutCancel(ctx), role)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func checkInstalled(ctx context.Context, role string) []checked {
	if role != "node" {
		return []checked{checkDaemon(ctx, role, "tcp", filepath.Join(dataDir, role, "address"))}
	}
	all := []checked{checkDaemon(ctx, role, "unix", filepath.Join(dataDir, "node", "status.sock"))}
	// A node that runs plain programs only does not use its netmanager.
	if _, err := os.Stat("/etc/treeline/net.yaml"); err == nil && strings.Contains(all[0].Text, "network") {
		all = append(all, checkDaemon(ctx, "net", "unix", filepath.Join(dataDir, "net", "status.sock")))
	}
	return all
}

// checkDaemon asks a daemon on this machine whether it is ready: at a unix socket, or at the address
// in a file.
func checkDaemon(ctx context.Context, name, network, at string) checked {
	const fix = "look into its log: journalctl -u treeline-%s, or /var/log/treeline/%s.log"
	fault := func(err error) checked {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			err = errors.New("it does not run")
		}
		return failed(name, fmt.Sprintf(fix, name, name), "%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, examineTime)
	defer cancel()
	scheme := "http"
	if network == "tcp" {
		text, err := os.ReadFile(at)
		if err != nil {
			return fault(err)
		}
		scheme, at = "https", strings.TrimSpace(string(text))
	}
	c := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, at)
		},
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}, //nolint:gosec // on this machine
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://daemon/readyz?verbose", http.NoBody)
	if err != nil {
		return fault(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		var unwrapped *net.OpError
		if errors.As(err, &unwrapped) {
			err = unwrapped
		}
		return fault(err)
	}
	defer resp.Body.Close()
	var parts []string
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		mark, text, _ := strings.Cut(lines.Text(), "] ")
		switch mark {
		case "[+":
			parts = append(parts, strings.TrimSuffix(text, " ok"))
		case "[-", "[!": // not connected to its cluster, for example
			return fault(errors.New(text))
		}
	}
	if resp.StatusCode != http.StatusOK {
		return fault(fmt.Errorf("its /readyz answers %s", resp.Status))
	}
	return passed(name, "is ready: %s", strings.Join(parts, ", "))
}
