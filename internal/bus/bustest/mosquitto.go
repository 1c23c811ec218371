package bustest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/freeport"
)

// Mosquitto is the external broker with the configuration in deploy/. Only paths and port are
// replaced.
type Mosquitto struct {
	Wire
	dir  string
	cmd  *exec.Cmd
	log  *os.File
	exit chan struct{}
}

var _ System = (*Mosquitto)(nil)

// mosquittoBinary finds Mosquitto. If it is missing, the test fails if TREELINE_TEST_REQUIRE is 1,
// else it is skipped.
func mosquittoBinary(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"mosquitto", "/usr/sbin/mosquitto"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const reason = "mosquitto is not installed (Debian: apt-get install mosquitto)"
	if os.Getenv("TREELINE_TEST_REQUIRE") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
	return ""
}

// StartMosquitto runs Mosquitto with the files in shipped, deploy/mosquitto, and with
// certificates of its own.
func StartMosquitto(t testing.TB, shipped string) *Mosquitto {
	t.Helper()
	authority, certs := NewCA(t), t.TempDir()
	authority.WriteServer(t, certs)
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	m := StartMosquittoAt(t, shipped, addr, certs)
	m.CA = authority
	return m
}

// StartMosquittoAt runs Mosquitto at addr with the files in shipped, deploy/mosquitto, and
// ca.crt, broker.crt and broker.key in certs. Without a CA the methods of Wire do not work.
func StartMosquittoAt(t testing.TB, shipped, addr, certs string) *Mosquitto {
	t.Helper()
	mosquittoBinary(t)
	dir, err := os.MkdirTemp("", "mosquitto")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := &Mosquitto{dir: dir, Wire: Wire{Addr: addr}}
	m.Copy(t, certs)
	_, port, _ := net.SplitHostPort(m.Addr)
	if err := ConfigureMosquitto(dir, shipped, net.JoinHostPort("127.0.0.1", port)); err != nil {
		t.Fatal(err)
	}
	m.log, err = os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(m.log.Name())
			t.Logf("mosquitto says:\n%s", text)
		}
		m.Close()
		m.log.Close()
	})
	m.Start(t)
	return m
}

// Copy copies ca.crt, broker.crt and broker.key from certs; Mosquitto reads them when it starts.
func (m *Mosquitto) Copy(t testing.TB, certs string) {
	t.Helper()
	for _, name := range []string{"ca.crt", "broker.crt", "broker.key"} {
		write(t, filepath.Join(m.dir, name), read(t, filepath.Join(certs, name)))
	}
}

// ConfigureMosquitto makes dir the directory of a Mosquitto that listens at addr: mosquitto.conf and acl are those in
// shipped, deploy/mosquitto, with other paths and another address; the broker keeps its data in data. The
// certificates must be in dir.
func ConfigureMosquitto(dir, shipped, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	conf, err := os.ReadFile(filepath.Join(shipped, "mosquitto.conf"))
	if err != nil {
		return err
	}
	text := string(conf)
	for old, new := range map[string]string{
		"listener 8883\n":              "listener " + port + " " + host + "\n",
		"/etc/mosquitto/treeline/":     dir + "/",
		"/var/lib/mosquitto/treeline/": filepath.Join(dir, "data") + "/",
	} {
		if !strings.Contains(text, old) {
			return fmt.Errorf("%s/mosquitto.conf does not contain %q any more", shipped, old)
		}
		text = strings.ReplaceAll(text, old, new)
	}
	acl, err := os.ReadFile(filepath.Join(shipped, "acl"))
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "mosquitto.conf"), []byte(text), 0o644), //nolint:gosec // Mosquitto runs as another user
		os.WriteFile(filepath.Join(dir, "acl"), acl, 0o644),                     //nolint:gosec // likewise
		makeData(dir))
}

// makeData makes the directory of a Mosquitto's data, for the user to which it switches from root.
func makeData(dir string) error {
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil || os.Geteuid() != 0 {
		return err
	}
	u, err := user.Lookup("mosquitto")
	if err != nil {
		return nil //nolint:nilerr // without that user it stays root
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return os.Chown(data, uid, gid)
}

// Lose deletes all retained messages while the broker is stopped.
func (m *Mosquitto) Lose(t testing.TB) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(filepath.Join(m.dir, "data")), makeData(m.dir)); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Cluster connects the cluster's client, CN "cluster".
func (m *Mosquitto) Cluster(t testing.TB) bus.Bus {
	return m.Dial(t, "cluster", "cluster", nil, &Link{Addr: m.Addr})
}

// Start starts the broker and returns when it listens.
func (m *Mosquitto) Start(t testing.TB) {
	t.Helper()
	m.cmd = exec.Command(mosquittoBinary(t), "-c", filepath.Join(m.dir, "mosquitto.conf"))
	m.cmd.Stdout, m.cmd.Stderr = m.log, m.log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, exit := m.cmd, make(chan struct{})
	m.exit = exit
	go func() { _ = cmd.Wait(); close(exit) }()
	if err := m.listening(); err != nil {
		t.Fatal(err)
	}
}

func (m *Mosquitto) listening() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.Addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-m.exit:
			return errors.New("mosquitto ended")
		case <-ctx.Done():
			return fmt.Errorf("mosquitto does not listen: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the broker with SIGTERM.
func (m *Mosquitto) Stop(testing.TB) { m.end(syscall.SIGTERM) }

// Kill ends the broker with SIGKILL.
func (m *Mosquitto) Kill() { m.end(syscall.SIGKILL) }

// Pause stops the broker's process, so that it answers nothing on the connections that it has, until it ends.
func (m *Mosquitto) Pause(t testing.TB) {
	t.Helper()
	if err := m.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

func (m *Mosquitto) end(s syscall.Signal) {
	if m.cmd != nil {
		_ = m.cmd.Process.Signal(s)
		_ = m.cmd.Process.Signal(syscall.SIGCONT) // after Pause
		<-m.exit
		m.cmd = nil
	}
}

// Close ends the broker.
func (m *Mosquitto) Close() { m.Stop(nil) }
