package lab_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

// reachedAt compares where the CLI says that instances of a service are reached with who answers there, and expects
// that a developer, who may not see nodes, does not see it.
func reachedAt(t *testing.T, o *lab.Overlay, outside *netlab.Host, token string, ids ...api.InstanceID) {
	for _, id := range ids {
		described := o.CLI("describe", "instance", string(id))
		_, at, ok := strings.Cut(described, "Reached at:")
		at, _, _ = strings.Cut(at, "\n")
		if at = strings.TrimSpace(at); !ok || !strings.HasPrefix(at, "203.0.113.") {
			t.Fatalf("describe does not say where %s is reached:\n%s", id, described)
		}
		var who string
		var err error
		if outside.Do(func() { who, err = get(at) }); err != nil || who != string(id) {
			t.Errorf("describe says that %s is reached at %s, where %q answers (%v)", id, at, who, err)
		}
		row := ""
		for line := range strings.Lines(o.CLI("get", "instances", "-o", "wide")) {
			if strings.HasPrefix(line, id.Name()+" ") {
				row = line
			}
		}
		if !strings.Contains(row, " "+at) {
			t.Errorf("get instances -o wide has %q, want %s", row, at)
		}
		for _, args := range [][]string{{"get", "instances", "-o", "wide"}, {"describe", "instance", string(id)}, {"get", "instances", "-o", "json"}} {
			out, err := o.Command(token, args...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), id.Name()) || strings.Contains(string(out), "203.0.113.") || strings.Contains(string(out), "Reached at") {
				t.Errorf("a developer's treeline %v: %v, want the instance without its node's address:\n%s", args, err, out)
			}
		}
	}
}

// The document of Oakestra's CLI, and the node of cluster c1 that it names.
const (
	oakestraDocument = "../../api/testdata/oakestra/53-client-and-nginx.json"
	oakestraNode     = "worker-1"
)

// oakestraImages gives the nodes images of the names in the document, before they start.
func oakestraImages(t *testing.T, o *lab.Overlay) {
	t.Helper()
	programtest.Need(t, "busybox")
	curl := filepath.Join(t.TempDir(), "curl") // as the document calls it: curl -s URL
	if err := os.WriteFile(curl, []byte("#!/bin/sh\nexec wget -qO- \"$2\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, img := range map[string]image.Image{
		"curl.tar": {
			Ref: "docker.io/curlimages/curl:7.82.0", Env: []string{"PATH=/bin"},
			Executables: map[string]string{"bin/sh": "/usr/bin/busybox", "bin/wget": "/usr/bin/busybox", "bin/sleep": "/usr/bin/busybox", "bin/curl": curl},
		},
		"nginx.tar": {Ref: "docker.io/library/nginx:latest", Binary: o.Program, Env: []string{"PORT=80"}},
	} {
		if err := image.WriteFile(filepath.Join(o.Containerd().Images, file), img); err != nil {
			t.Fatal(err)
		}
	}
}

// oakestraRuns registers the default document of Oakestra's CLI, unchanged, by Oakestra's API, starts an instance
// of each service, and expects the server at its published port and its answers in the client's output.
func oakestraRuns(t *testing.T, o *lab.Overlay, outside *netlab.Host) {
	const user, password = "oak", "correct horse battery"
	invited, err := o.API.CreateUser(t.Context(), string(o.Tenant)+"/"+user, "Application_Provider")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Client(nil).Redeem(t.Context(), api.Redeem{User: invited.User, Code: invited.Code, Password: password}); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(o.Dir, "root", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	c := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	token := ""
	send := func(method, path, body string, into any) error {
		req, err := http.NewRequestWithContext(t.Context(), method, "https://"+o.RootLink.Addr()+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := c.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
		}
		if err == nil && into != nil {
			err = json.Unmarshal(text, into)
		}
		return err
	}
	must := func(method, path, body string, into any) {
		t.Helper()
		if err := send(method, path, body, into); err != nil {
			t.Fatal(err)
		}
	}
	var session struct{ Token string }
	must("POST", "/api/auth/login", fmt.Sprintf(`{"username":%q,"password":%q,"organization_name":%q}`, user, password, o.Tenant), &session)
	token = session.Token

	text, err := os.ReadFile(oakestraDocument)
	if err != nil {
		t.Fatal(err)
	}
	type application struct {
		ID       string   `json:"applicationID"`
		Services []string `json:"microservices"`
	}
	var apps []application
	must("POST", "/api/application", string(text), &apps)
	doc := slices.IndexFunc(apps, func(a application) bool { return strings.HasSuffix(a.ID, "~clientsrvr.test") }) // the answer has all of the user's
	if doc < 0 || len(apps[doc].Services) != 2 {
		t.Fatalf("the applications are %+v, want clientsrvr.test with two services", apps)
	}
	for _, id := range apps[doc].Services {
		must("POST", "/api/service/"+id+"/instance", "", nil)
	}
	for _, id := range apps[doc].Services {
		lab.Within(t, 90*time.Second, id+" runs", func() error {
			var s struct {
				Instances []struct{ Status string } `json:"instance_list"`
			}
			if err := send("GET", "/api/service/"+id, "", &s); err != nil {
				return err
			}
			if len(s.Instances) != 1 || s.Instances[0].Status != "RUNNING" {
				return fmt.Errorf("its instances are %+v", s.Instances)
			}
			return nil
		})
	}
	server, client := string(o.Tenant)+"/clientsrvr.test.nginx.test#0", string(o.Tenant)+"/clientsrvr.test.curl.test#0"
	lab.Within(t, time.Minute, "the server answers at its published port", func() error {
		errs := []error{}
		for i := range o.Nodes {
			var who string
			var err error
			if outside.Do(func() { who, err = get(fmt.Sprintf("203.0.113.%d:6080", 10+i)) }); who == server {
				return nil
			}
			errs = append(errs, fmt.Errorf("%q answers: %w", who, err))
		}
		return errors.Join(errs...)
	})
	lab.Within(t, time.Minute, "the client has the server's answers", func() error {
		if out := o.CLI("logs", client, "--tail", "50"); !strings.Contains(out, server) {
			return fmt.Errorf("the client has written %q", out)
		}
		return nil
	})
	must("DELETE", "/api/application/"+apps[doc].ID, "", nil)
	lab.Within(t, time.Minute, "no process of it is left", func() error {
		for _, w := range o.Workloads() {
			if string(w.Instance) == server || string(w.Instance) == client {
				return fmt.Errorf("%+v runs", w)
			}
		}
		return nil
	})
}
