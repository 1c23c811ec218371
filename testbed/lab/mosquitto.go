package lab

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/treeline-edge/treeline/internal/bus/bustest"
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
	l.must(os.MkdirAll(dir, 0o755)) //nolint:gosec // Mosquitto runs as another user
	certs := filepath.Join(c.Data, "broker")
	for _, name := range []string{"ca.crt", "broker.crt", "broker.key"} {
		var b []byte
		Within(l.t, patience, "the cluster writes "+name, func() (err error) {
			b, err = os.ReadFile(filepath.Join(certs, name))
			return err
		})
		l.must(os.WriteFile(filepath.Join(dir, name), b, 0o644)) //nolint:gosec // as above; a key of the test
	}
	c.brokerAddr = net.JoinHostPort(address, brokerPort)
	l.must(bustest.ConfigureMosquitto(dir, shipped, c.brokerAddr))
	c.Broker = l.proc(c.Name+"-mosquitto", on(c.host, []string{program, "-c", filepath.Join(dir, "mosquitto.conf")})...)
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
