package lab_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// secrets is a lab with an application that has a secret and a config in files.
type secrets struct {
	*lab.Lab
	t      *testing.T
	marked string // the value that must be nowhere else
	nodes  []*lab.Node
}

func (s *secrets) put(kind api.ValueKind, name, text string, create bool) {
	s.t.Helper()
	n := api.NewValues{Name: name, Data: map[string][]byte{"value": []byte(text)}}
	var err error
	if create {
		_, err = s.API.CreateValues(s.Context(), kind, s.Tenant, n)
	} else {
		_, err = s.API.ReplaceValues(s.Context(), kind, s.Tenant.Values(name), n, 0)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// file returns the content of a file in a workload.
func file(w lab.Workload, path string) (string, error) {
	root := fmt.Sprintf("/proc/%d/root", w.PID)
	to, err := os.Readlink(root + path)
	if err != nil {
		return "", err
	}
	version, err := os.Readlink(root + filepath.Dir(to))
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root, filepath.Dir(filepath.Dir(to)), version, filepath.Base(to)))
	return string(text), err
}

func (s *secrets) waitFile(n int, path, want string) {
	s.t.Helper()
	id := s.ID("shop", "web", n)
	lab.Within(s.t, time.Minute, fmt.Sprintf("%s of instance %d is %q", path, n, want), func() error {
		all := s.WorkloadsOf(id)
		if len(all) == 0 {
			return fmt.Errorf("%s has no process", id)
		}
		if got, err := file(all[0], path); err != nil || got != want {
			return fmt.Errorf("it is %q, %w", got, err)
		}
		return nil
	})
}

// forms returns the forms in which the marked value may appear.
func (s *secrets) forms() [][]byte {
	encoded := base64.StdEncoding.EncodeToString([]byte(s.marked))
	return [][]byte{[]byte(s.marked), []byte(strings.TrimRight(encoded, "=")[:len(encoded)-4])}
}

func (s *secrets) has(text []byte) bool {
	return slices.ContainsFunc(s.forms(), func(f []byte) bool { return bytes.Contains(text, f) })
}

// leaks returns where the marked value is: files of daemons and containerd, answers, and processes.
func (s *secrets) leaks() (found []string) {
	s.t.Helper()
	seen := 0
	err := filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !d.Type().IsRegular() || strings.Contains(path, "/rootfs/"):
			return nil
		}
		if info, err := d.Info(); err != nil || info.Mode()&0o111 != 0 {
			return nil // a program
		}
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if seen++; s.has(text) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil || seen < 20 {
		s.t.Fatalf("%d files of the lab were searched: %v", seen, err)
	}
	for _, path := range []string{
		"secrets", "secrets/" + api.PathOf(s.Tenant.Values("db")), "apps", "services", "instances", "events?limit=5000",
		"instances/" + api.PathOf(s.ID("shop", "web", 0)) + "/why",
	} {
		path, query, _ := strings.Cut(path, "?")
		q, _ := url.ParseQuery(query)
		var answer json.RawMessage
		_, err := s.API.Do(s.Context(), client.Request{Method: http.MethodGet, Path: "/v1/" + path, Query: q}, &answer)
		if err != nil && !errors.Is(err, api.ErrNotFound) {
			s.t.Errorf("GET %s: %v", path, err)
		}
		if s.has(answer) {
			found = append(found, path)
		}
	}
	plan, err := s.API.Plan(s.Context(), lab.Encode(s.sla(3)), client.ApplyOptions{Tenant: s.Tenant})
	if text, _ := json.Marshal(plan); err == nil && s.has(text) {
		found = append(found, "the plan")
	}
	for _, name := range []string{"cmdline", "environ"} {
		all, _ := filepath.Glob("/proc/[0-9]*/" + name)
		for _, path := range all {
			if text, _ := os.ReadFile(path); s.has(text) {
				found = append(found, path)
			}
		}
	}
	return found
}

func (s *secrets) sla(replicas int) api.SLA {
	m := s.Container("web", replicas)
	m.Files = []api.File{
		{Path: "/etc/db", Secret: "db"},
		{Path: "/run/secrets/db", Secret: "db.value"},
		{Path: "/etc/web.conf", Config: "web", OnChange: api.ChangeRestarts},
		{Path: "/etc/number", Content: "{{instance.number}}", Template: true},
	}
	return lab.App("shop", m)
}

// hostile requests a value with the certificate of a node.
func (s *secrets) hostile(n *lab.Node, want wire.WantValue) int {
	s.t.Helper()
	dir, err := os.OpenRoot(n.Data)
	if err != nil {
		s.t.Fatal(err)
	}
	defer dir.Close()
	creds, err := clusterlink.Load(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	conf := trust.New(creds.Pair.Root()).Client(identity.OfCluster(creds.Cluster), func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return creds.Pair.TLS(false), nil
	})
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
	var v wire.Value
	err = call.JSON(context.Background(), c, creds.URL+"/v1/node/value", want, &v)
	if p, ok := errors.AsType[*api.Problem](err); ok {
		return p.Status
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return http.StatusOK
}

// TestSecretsAreOnlyInTheirWorkloads runs an application with a secret through changes and crashes,
// and searches for its value everywhere else.
func TestSecretsAreOnlyInTheirWorkloads(t *testing.T) {
	t.Parallel()
	s := &secrets{Lab: open(t, lab.Options{}), t: t, marked: "marked-value-of-the-lab-1"}
	address, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	o := steady()
	o.Args = append(o.Args, "--broker-url", "mqtts://"+address)
	c := s.Cluster("munich", o)
	tap := bustest.StartMosquittoAt(t, "../../deploy/mosquitto", address, filepath.Join(c.Data, "broker")).Tap(t)
	for _, name := range []string{"n1", "n2"} {
		s.nodes = append(s.nodes, c.Node(name, containers(t)))
	}
	s.Wait("both nodes take work", lab.Nodes("munich", 2))
	s.put(api.KindSecret, "db", s.marked, true)
	s.put(api.KindConfig, "web", "one", true)
	s.Apply(s.sla(2))
	s.Wait("web runs", s.Running("shop", "web", 2))
	for n := range 2 {
		s.waitFile(n, "/etc/db", s.marked)
		s.waitFile(n, "/run/secrets/db", s.marked)
		s.waitFile(n, "/etc/web.conf", "one")
		s.waitFile(n, "/etc/number", fmt.Sprint(n))
	}
	sub(t, s.Lab, "other nodes", func(t *testing.T) {
		s.t = t
		spare := c.Node("n3", containers(t))
		for name, tt := range map[string]struct {
			node *lab.Node
			want wire.WantValue
		}{
			"a node without an instance": {spare, wire.WantValue{Tenant: s.Tenant, Kind: api.KindSecret, Name: "db", Version: 1}},
			"another secret":             {s.nodes[0], wire.WantValue{Tenant: s.Tenant, Kind: api.KindSecret, Name: "other", Version: 1}},
			"another tenant's":           {s.nodes[0], wire.WantValue{Tenant: "evil", Kind: api.KindSecret, Name: "db", Version: 1}},
		} {
			if status := s.hostile(tt.node, tt.want); status != http.StatusNotFound {
				t.Errorf("%s: the cluster answers %d, want 404", name, status)
			}
		}
		spare.Kill9()
	})

	sub(t, s.Lab, "change in place across crashes", func(t *testing.T) {
		s.t = t
		before := s.Workloads()
		dead := s.nodes[0]
		if before[0].Node == s.nodes[1].Name {
			dead = s.nodes[1]
		}
		before = slices.DeleteFunc(before, func(w lab.Workload) bool { return w.Node == dead.Name })
		dead.Kill9()
		defer dead.Start()
		c.Kill9()
		s.marked = "marked-value-of-the-lab-2"
		s.put(api.KindSecret, "db", s.marked, false)
		c.Start()
		for _, w := range before {
			s.waitFile(w.Instance.Number(), "/etc/db", s.marked)
			if !w.Alive() {
				t.Errorf("%s was restarted, want it to run on", w.Instance)
			}
		}
	})
	for n := range 2 {
		s.waitFile(n, "/etc/db", s.marked)
	}

	sub(t, s.Lab, "restart one by one", func(t *testing.T) {
		s.t = t
		s.put(api.KindConfig, "web", "two", false)
		s.Wait("both have been restarted", func(v lab.View) bool {
			all := v.Of(s.ServiceID("shop", "web"))
			return len(all) == 2 && !slices.ContainsFunc(all, func(i api.Instance) bool { return i.Tries < 2 || i.State != api.Running })
		})
		for n := range 2 {
			s.waitFile(n, "/etc/web.conf", "two")
		}
	})

	sub(t, s.Lab, "without the root", func(t *testing.T) {
		s.t = t
		c.Up.Cut()
		defer c.Up.Heal()
		w := s.Workload(s.ID("shop", "web", 0))
		gone := w.Gone(s.Lab)
		w.Kill9()
		s.WaitGone("web", gone)
		s.waitFile(0, "/etc/db", s.marked)
	})

	remove := func() error {
		return s.API.DeleteValues(s.Context(), api.KindSecret, s.Tenant.Values("db"), 0, false)
	}
	if err := remove(); !errors.Is(err, api.ErrConflict) {
		t.Errorf("delete a secret in use: %v, want ErrConflict", err)
	}
	found := s.leaks()
	if len(found) > 0 {
		t.Errorf("the secret is in %v", found)
	}
	s.Delete("shop")
	s.Wait("the application is gone", s.Gone("shop"))
	if err := remove(); err != nil {
		t.Errorf("delete the secret: %v", err)
	}
	lab.Within(t, time.Minute, "the files in memory are deleted", func() error {
		var left []string
		err := filepath.WalkDir(s.Files(), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				left = append(left, path)
			}
			return err
		})
		if err != nil || len(left) > 0 {
			return fmt.Errorf("%v is left, %w", left, err)
		}
		return nil
	})
	if found := s.leaks(); len(found) > 0 {
		t.Errorf("after its deletion the secret is in %v", found)
	}
	topics := map[string]bool{}
	for _, m := range tap.Messages() {
		topics[m.Topic[strings.LastIndexByte(m.Topic, '/')+1:]] = true
		for _, value := range []string{"marked-value-of-the-lab-1", "marked-value-of-the-lab-2"} {
			if s.marked = value; s.has(m.Payload) {
				t.Errorf("the broker carried the secret on %s", m.Topic)
			}
		}
	}
	for _, want := range []string{"desired", "observed", "alive"} {
		if !topics[want] {
			t.Errorf("the broker's operator saw the topics %v, want %s among them", topics, want)
		}
	}
}
