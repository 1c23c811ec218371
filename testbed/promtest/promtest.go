// Package promtest runs Debian's Prometheus with deploy/prometheus against daemons of a test.
package promtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Target is what a Prometheus scrapes.
type Target struct {
	Root, Cluster           string // host:port
	RootToken, ClusterToken string
	CA                      []byte
	// Prefix is put before the command line, such as nsenter with a network; Dial connects to addresses there.
	Prefix []string
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// Server is a running Prometheus.
type Server struct {
	Dir  string // has its configuration
	url  string
	http http.Client
}

// Sample is an element of the answer to a query.
type Sample struct{ Metric map[string]string }

// Start checks the configuration and the rules in deploy/prometheus with promtool, replaces the addresses, and runs
// Prometheus until the test ends.
func Start(t *testing.T, to Target) *Server {
	t.Helper()
	s := &Server{Dir: t.TempDir(), http: http.Client{Transport: &http.Transport{DialContext: to.Dial, DisableKeepAlives: true}}}
	files := map[string][]byte{"root.token": []byte(to.RootToken), "cluster.token": []byte(to.ClusterToken), "treeline-ca.pem": to.CA}
	for _, name := range []string{"prometheus.yml", "rules.yml", "rules_test.yml"} {
		text, err := os.ReadFile(filepath.Join("../../deploy/prometheus", name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = text
	}
	files["prometheus.yml"] = []byte(strings.NewReplacer("root.example:7443", to.Root, "c1.example:7444", to.Cluster, "15s", "1s").
		Replace(string(files["prometheus.yml"])))
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(s.Dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}, {"check", "config", "prometheus.yml"}} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = s.Dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	s.run(t, to.Prefix)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		if resp, err := s.http.Get(s.url + "/api/v1/targets"); err == nil {
			text, _ := io.ReadAll(resp.Body)
			t.Logf("targets: %s", text)
			_ = resp.Body.Close()
		}
	})
	return s
}

func (s *Server) run(t *testing.T, prefix []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	args := append(slices.Clone(prefix), "prometheus", "--config.file="+filepath.Join(s.Dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(s.Dir, "data"), "--web.listen-address=127.0.0.1:0", "--log.format=json")
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // a program of the test
	cmd.Dir = s.Dir
	logs, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatalf("start prometheus: %v", err)
	}
	address, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for dec := json.NewDecoder(logs); ; {
			var line struct{ Msg, Address, Err, Level string }
			if dec.Decode(&line) != nil {
				return
			}
			if line.Level != "info" {
				t.Log(line)
			}
			if line.Msg == "Listening on" {
				address <- line.Address
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = cmd.Wait()
	})
	select {
	case a := <-address:
		s.url = "http://" + a
	case <-ended:
		t.Fatal("prometheus ended")
	}
}

// Query returns the result of an expression.
func (s *Server) Query(expr string) ([]Sample, error) {
	resp, err := s.http.Get(s.url + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var out struct {
		Status, Error string
		Data          struct{ Result []Sample }
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || out.Status != "success" {
		return nil, fmt.Errorf("%s: %s %w", expr, out.Error, err)
	}
	return out.Data.Result, nil
}

// Scrapes waits until Prometheus has scraped a target of each job, and of no other, within a minute.
func (s *Server) Scrapes(t *testing.T, jobs ...string) {
	t.Helper()
	slices.Sort(jobs)
	var up []string
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { // it has no event for that
		up, err = s.Values("up == 1", "job") // an error until it is ready
		if slices.Equal(up, jobs) {
			return
		}
	}
	t.Fatalf("prometheus scrapes %v (%v), want %v", up, err, jobs)
}

// Values returns the values that a label has in the result of an expression, sorted, each once.
func (s *Server) Values(expr, label string) ([]string, error) {
	found, err := s.Query(expr)
	var all []string
	for _, m := range found {
		all = append(all, m.Metric[label])
	}
	slices.Sort(all)
	return slices.Compact(all), err
}
