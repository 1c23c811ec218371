package lab

import (
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// brokerPort is the port of a Mosquitto at its cluster's address.
const brokerPort = "8883"

// mosquitto prepares a Mosquitto on the cluster's host, with the configuration in shipped, which is
// deploy/mosquitto, and the certificates that the cluster wrote.
func (c *Cluster) mosquitto(shipped, address string) {
	l := c.lab
	l.t.Helper()
	program := "/usr/sbin/mosquitto"
	if found, err := exec.LookPath("mosquitto"); err == nil {
		program = found
	}
	dir := c.Data + "-mosquitto"
	data := filepath.Join(dir, "data")
	l.must(os.MkdirAll(data, 0o755)) //nolint:gosec // Mosquitto runs as another user
	certs := filepath.Join(c.Data, "broker")
	for _, name := range []string{"ca.crt", "broker.crt", "broker.key"} {
		var b []byte
		Within(l.t, patience, "the cluster writes "+name, func() (err error) {
			b, err = os.ReadFile(filepath.Join(certs, name))
			return err
		})
		l.must(os.WriteFile(filepath.Join(dir, name), b, 0o644)) //nolint:gosec // as above; a key of the test
	}
	conf, err := os.ReadFile(filepath.Join(shipped, "mosquitto.conf"))
	l.must(err)
	acl, err := os.ReadFile(filepath.Join(shipped, "acl"))
	l.must(err)
	text := strings.NewReplacer(
		"listener 8883\n", "listener "+brokerPort+" "+address+"\n",
		"/etc/mosquitto/treeline/", dir+"/", "/var/lib/mosquitto/treeline/", data+"/",
	).Replace(string(conf))
	l.must(os.WriteFile(filepath.Join(dir, "mosquitto.conf"), []byte(text), 0o644)) //nolint:gosec // as above
	l.must(os.WriteFile(filepath.Join(dir, "acl"), acl, 0o644))                     //nolint:gosec // as above
	if u, err := user.Lookup("mosquitto"); err == nil {
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		l.must(os.Chown(data, uid, gid))
	}
	c.Broker = l.proc(c.Name+"-mosquitto", on(c.host, []string{program, "-c", filepath.Join(dir, "mosquitto.conf")})...)
	c.brokerAddr = net.JoinHostPort(address, brokerPort)
}

// StartBroker starts the cluster's Mosquitto and waits until it listens.
func (c *Cluster) StartBroker() {
	l := c.lab
	l.t.Helper()
	c.Broker.Launch()
	at := l.spaceOf(c.host)
	Within(l.t, patience, "the broker listens", func() error {
		conn, err := at.dial(c.brokerAddr)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
}
