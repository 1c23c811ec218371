//go:build linux

package dev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/deploy"
	"github.com/treeline-edge/treeline/internal/freeport"
)

// An installation with replicas (Config.HA) has two processes of the root and of each cluster. They share
// a FerretDB, and each cluster has a Mosquitto.
const (
	storeName   = "store"
	secondOf    = "-2" // suffix of the second replica's name
	brokerOf    = "-broker"
	gossipOf    = "-gossip"
	mosquitto   = "mosquitto"
	maxSockPath = 100 // the kernel's limit is 107
)

// The keys that the second replica gets from the first one.
var (
	rootKeys    = []string{"root-ca.pem", "token-keys.json", "secrets.key"}
	clusterKeys = []string{"cluster-ca.pem", "cluster.json", "secrets.key", "operator-token"}
)

// checkHA checks the address of an installation with replicas, and that its programs exist.
func (c *Config) checkHA() (err error) {
	if !c.HA {
		return nil
	}
	if host, _, _ := net.SplitHostPort(c.Listen); host == "" || net.ParseIP(host).IsUnspecified() {
		return fmt.Errorf("--listen %s: replicas need one address of this machine, such as 127.0.0.1:0, because clients get it: %w", c.Listen, api.ErrInvalid)
	}
	if _, err := exec.LookPath(c.FerretDB); err != nil {
		return fmt.Errorf("--ha needs FerretDB, the store of the replicas: build it with scripts/ferretdb, which prints its path, and pass it with --ferretdb: %w", api.ErrNotFound)
	}
	for _, name := range []string{mosquitto, "/usr/sbin/" + mosquitto} {
		if c.mosquitto, err = exec.LookPath(name); err == nil {
			return nil
		}
	}
	return fmt.Errorf("--ha needs mosquitto, the broker of a cluster with replicas: install it (apt-get install mosquitto): %w", api.ErrNotFound)
}

// socket returns the path of a unix socket in the data directory, or elsewhere if that is too long.
func (in *installation) socket(name string) string {
	if path := filepath.Join(in.dir(name), "sock"); len(path) <= maxSockPath {
		return path
	}
	return filepath.Join("/run", hostsPrefix+in.tag()+"-"+name+".sock")
}

// startStore starts FerretDB. It has no access control, so that it listens on a socket of this user only.
func (in *installation) startStore(ctx context.Context) error {
	dir, socket := in.dir(storeName), in.socket(storeName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("start the store: %w", err)
	}
	args := []string{
		"--handler=sqlite", "--sqlite-url=file:" + dir + "/", "--state-dir=" + dir, "--listen-addr=", "--listen-unix=" + socket,
		"--debug-addr=-", "--telemetry=disable", "--log-level=warn",
	}
	d := in.sup.start(child{name: storeName, binary: in.cfg.FerretDB, log: in.log(storeName), args: func() []string {
		_ = os.Remove(socket) // of a killed process
		return args
	}})
	if err := d.awaitPort(ctx, "unix", socket); err != nil {
		return err
	}
	in.hooks.Step("(store) FerretDB serves at %s", socket)
	return nil
}

// storeURI returns the URI of the replicas' store.
func (in *installation) storeURI() string {
	return "mongodb://" + url.QueryEscape(in.socket(storeName)) + "/treeline"
}

// address returns the address of a daemon, and chooses one if it has none: all replicas have to know it
// before the first one starts.
func (in *installation) address(name string) (string, error) {
	at := in.listen(name)
	if _, port, err := net.SplitHostPort(at); err != nil || port != "0" {
		return at, err
	}
	ln, err := freeport.Listen(at)
	if err != nil {
		return "", fmt.Errorf("choose an address for %s: %w", name, err)
	}
	at = ln.Addr().String()
	if err := ln.Close(); err != nil {
		return "", fmt.Errorf("choose an address for %s: %w", name, err)
	}
	return at, in.update(func(s *state) { s.Listen[name] = at })
}

// haArgs returns the flags of both replicas of a daemon; nil without replicas.
func (in *installation) haArgs(name string) ([]string, error) {
	if !in.cfg.HA {
		return nil, nil
	}
	args := []string{"--store", in.storeURI(), "--replica"}
	for _, n := range []string{name, name + secondOf} {
		at, err := in.address(n)
		if err != nil {
			return nil, err
		}
		args = append(args, "--replicas", "https://"+at)
	}
	return args, nil
}

// gossipArgs returns the flags of one replica for the gossip; nil without replicas.
func (in *installation) gossipArgs(name string) ([]string, error) {
	if !in.cfg.HA {
		return nil, nil
	}
	at, err := in.address(name + gossipOf)
	if err != nil {
		return nil, err
	}
	return []string{"--gossip-listen", at}, nil
}

// startSecond starts the second replica of a daemon with the keys of the first one.
func (in *installation) startSecond(ctx context.Context, name, binary string, keys, args []string) error {
	if !in.cfg.HA {
		return nil
	}
	second := name + secondOf
	if err := os.MkdirAll(in.dir(second), 0o700); err != nil {
		return fmt.Errorf("start %s: %w", second, err)
	}
	for _, file := range keys {
		to := filepath.Join(in.dir(second), file)
		if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(in.dir(name), file))
		if err == nil {
			err = os.WriteFile(to+".new", text, 0o600)
		}
		if err == nil { // a file that was written in part would be taken for the key at the next start
			err = os.Rename(to+".new", to)
		}
		if err != nil {
			return fmt.Errorf("copy the keys of %s: %w", name, err)
		}
	}
	addr, err := in.serve(ctx, second, binary, "", args)
	if err == nil {
		in.hooks.Step("(%s) is the second replica, at https://%s", second, addr)
	}
	return err
}

// startBroker starts the Mosquitto of a cluster with the certificates that the cluster writes.
func (in *installation) startBroker(ctx context.Context, cluster string) error {
	name := cluster + brokerOf
	dir, certs := in.dir(name), filepath.Join(in.dir(cluster), "broker")
	at, err := in.address(name)
	if err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(at)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	conf, err := deploy.Mosquitto.ReadFile("mosquitto/mosquitto.conf")
	if err != nil {
		return err
	}
	acl, err := deploy.Mosquitto.ReadFile("mosquitto/acl")
	if err != nil {
		return err
	}
	text := strings.NewReplacer(
		"listener 8883\n", "listener "+port+" "+host+"\n",
		"/etc/mosquitto/treeline/acl", filepath.Join(dir, "acl"), "/etc/mosquitto/treeline", certs, "/var/lib/mosquitto/treeline", dir,
	).Replace(string(conf))
	if os.Geteuid() == 0 {
		text += "user root\n" // which may read the directory
	}
	file := filepath.Join(dir, "mosquitto.conf")
	if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.WriteFile(filepath.Join(dir, "acl"), acl, 0o600)); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	d := in.sup.start(child{name: name, binary: in.cfg.mosquitto, log: in.log(name), args: func() []string { return []string{"-c", file} }})
	if err := d.awaitPort(ctx, "tcp", at); err != nil {
		return err
	}
	in.hooks.Step("(%s) Mosquitto serves at mqtts://%s", name, at)
	return nil
}

// awaitFile waits until a daemon has written a file.
func (in *installation) awaitFile(ctx context.Context, name, path string) error {
	for _, p := range in.sup.children() {
		if p.name == name {
			_, err := p.awaitFile(ctx, path)
			return err
		}
	}
	return fmt.Errorf("daemon %s: %w", name, api.ErrNotFound)
}

// awaitPort waits until the child accepts connections.
func (p *process) awaitPort(ctx context.Context, network, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%s does not answer at %s after %s: %w\n%s", p.name, addr, startTime, api.ErrTimeout, tail(p.log))
			}
			return ctx.Err()
		}
	}
}
