package tiers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/yaml"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// oakestra is a root with Oakestra's API over plain HTTP.
type oakestra struct {
	*realRoot
	url string
}

func startOakestra(t *testing.T, with func(*root.Config)) oakestra {
	t.Helper()
	r := startRoot(t, func(c *root.Config) {
		c.OakestraCompat, c.OakestraListen = true, "127.0.0.1:0"
		with(c)
	})
	return oakestra{r, "http://" + strings.TrimSpace(wait(t, filepath.Join(r.cfg.Data, root.OakestraFile)))}
}

// user creates a user with the password of the recorded requests.
func (r *realRoot) user(t *testing.T, id string, roles ...string) {
	t.Helper()
	tenant, _, _ := strings.Cut(id, "/")
	if err := r.admin.CreateTenant(t.Context(), api.Tenant(tenant), ""); err != nil {
		t.Log(err) // it exists
	}
	code, err := r.admin.CreateUser(t.Context(), id, roles...)
	check(t, err)
	c, err := client.New(client.Options{URL: r.url, CA: []byte(wait(t, filepath.Join(r.cfg.Data, root.CAFile)))})
	check(t, err)
	defer c.Close()
	_, err = c.Redeem(t.Context(), api.Redeem{User: id, Code: code.Code, Password: "correct horse battery"})
	check(t, err)
}

// send returns the status and the body of the answer.
func (o oakestra) send(t *testing.T, token, method, path, body string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, o.url+path, strings.NewReader(body))
	check(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	check(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check(t, err)
	return resp.StatusCode, text
}

// TestOakestrasRequests replays recorded requests of Oakestra's clients against real daemons, whose nodes have
// a fake runtime.
func TestOakestrasRequests(t *testing.T) {
	o := startOakestra(t, func(*root.Config) {})
	o.user(t, "acme/alice", "Application_Provider")
	tok, err := o.admin.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "cluster"})
	check(t, err)
	c := newCluster(t, o.anchor(t), tok.Token)
	c.cfg.OakestraListen = "127.0.0.1:0"
	c.run(t)
	cfg := c.nodeConfig(t, "n1", c.nodeToken(api.TokenRequest{}))
	begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) })
	c.until(t, "n1", api.NodeReady)

	at := "http://" + strings.TrimSpace(wait(t, filepath.Join(c.cfg.Data, cluster.OakestraFile)))
	eventually(t, "the cluster's status says that the root is connected", func() bool {
		_, text := oakestra{url: at}.send(t, "", "GET", "/api/cluster/status", "")
		return string(text) == `{"cluster_name":"munich","cluster_id":"munich","connected_to_root":true}`+"\n"
	})

	recorded, err := os.ReadFile("testdata/oakestra.txt")
	check(t, err)
	values := map[string]string{}
	blocks := strings.Split(strings.TrimSpace(string(recorded)), "\n\n")[1:]
	for _, block := range blocks {
		lines := strings.Split(block, "\n")
		if len(lines) != 4 {
			t.Fatalf("a block has %d lines, want 4:\n%s", len(lines), block)
		}
		request, again := strings.CutPrefix(lines[0], "~")
		token := "token"
		for _, other := range []string{"operator", "refresh"} {
			if rest, ok := strings.CutPrefix(request, other+" "); ok {
				token, request = other, rest
			}
		}
		method, path, _ := strings.Cut(request, " ")
		body := strings.TrimPrefix(lines[1], "-")
		for name, v := range values {
			if strings.Contains(path, "$"+name) || strings.Contains(body, `"$`+name+`"`) {
				path, body = strings.ReplaceAll(path, "$"+name, v), strings.ReplaceAll(body, `"$`+name+`"`, `"`+v+`"`)
			}
		}
		var want any
		check(t, json.Unmarshal([]byte(lines[3]), &want))
		var fault string
		try := func() bool {
			status, text := o.send(t, values[token], method, path, body)
			var got any
			fault = ""
			if err := json.Unmarshal(text, &got); err != nil {
				fault = err.Error()
			} else if fmt.Sprint(status) != lines[2] {
				fault = fmt.Sprintf("status %d, want %s", status, lines[2])
			} else {
				fault = differs(want, got, values)
			}
			if fault != "" {
				fault = fmt.Sprintf("%s %s: %s\n%s", method, path, fault, text)
			}
			return fault == ""
		}
		if again {
			eventually(t, request, try)
		} else if !try() {
			t.Fatal(fault)
		}
	}

	var claims struct {
		Subject      string   `json:"sub"`
		User         string   `json:"user"`
		Organization string   `json:"organization"`
		Roles        []string `json:"roles"`
		Expires      int64    `json:"exp"`
	}
	parts := strings.Split(values["token"], ".")
	if len(parts) != 3 {
		t.Fatalf("the token has %d parts, want those of a JWT", len(parts))
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	check(t, err)
	check(t, json.Unmarshal(text, &claims))
	if claims.Subject != "acme/alice" || claims.User != "alice" || claims.Organization != "acme" || !slices.Equal(claims.Roles, []string{"Application_Provider"}) || claims.Expires == 0 {
		t.Errorf("the token's claims are %s, want sub, user, organization, roles and exp of acme/alice", text)
	}
}

// differs returns the first difference between a recorded answer and an answer, which may have more fields.
func differs(want, got any, values map[string]string) string {
	switch w := want.(type) {
	case string:
		name, variable := strings.CutPrefix(w, "$")
		if variable {
			text, ok := got.(string)
			if have, known := values[name]; !ok || text == "" || known && have != text {
				return fmt.Sprintf("%s is %v, want %q", w, got, have)
			}
			values[name] = text
			return ""
		}
		if w == "*" && got != "" && got != nil {
			return ""
		}
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("got %v, want an object", got)
		}
		for k, v := range w {
			if d := differs(v, g[k], values); d != "" {
				return k + ": " + d
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("got %v, want a list of %d", got, len(w))
		}
		for i := range w {
			if d := differs(w[i], g[i], values); d != "" {
				return fmt.Sprintf("%d: %s", i, d)
			}
		}
		return ""
	}
	if want != got {
		return fmt.Sprintf("got %v, want %v", got, want)
	}
	return ""
}

// TestOakestrasDocumentsAreRegisteredUnchanged sends the documents of api/testdata/oakestra, which are like those in
// Oakestra's documentation, and expects the results of outcomes.txt. Its answers are encoded twice.
func TestOakestrasDocumentsAreRegisteredUnchanged(t *testing.T) {
	o := startOakestra(t, func(c *root.Config) { c.OakestraDoubleJSON = true })
	outcomes, err := os.ReadFile("../../api/testdata/oakestra/outcomes.txt")
	check(t, err)
	files, err := filepath.Glob("../../api/testdata/oakestra/[0-9]*")
	check(t, err)
	o.user(t, "acme/alice", "Application_Provider")
	login := func() string {
		var s struct {
			Token string `json:"token"`
		}
		_, text := o.send(t, "", "POST", "/api/auth/login", `{"username":"acme/alice","password":"correct horse battery"}`)
		check(t, json.Unmarshal(text, &s))
		return s.Token
	}
	token := login()
	alone, accepted := 0, 0
	for _, path := range files {
		name := filepath.Base(path)
		doc, err := os.ReadFile(path)
		check(t, err)
		if filepath.Ext(path) == ".yaml" {
			if doc, err = yaml.ToJSON(doc); err != nil {
				continue
			}
		}
		if strings.Contains(string(outcomes), name+": accepted into an application\n") {
			alone++
			o.uploadServices(t, token, name, doc)
			continue
		}
		status, text := o.send(t, token, "POST", "/api/application/", string(doc))
		if !strings.Contains(string(outcomes), name+": accepted\n") {
			if status < 400 || status >= 500 {
				t.Errorf("%s: status %d, want a refusal: %s", name, status, text)
			}
			continue
		}
		accepted++
		var once string
		var apps []struct {
			ID       string   `json:"applicationID"`
			Services []string `json:"microservices"`
		}
		if status != http.StatusOK {
			t.Errorf("%s: status %d: %s", name, status, text)
			continue
		}
		check(t, json.Unmarshal(text, &once))
		check(t, json.Unmarshal([]byte(once), &apps))
		for _, a := range apps {
			o.deleteApplication(t, token, a.ID)
		}
	}
	if accepted < 30 || alone < 3 {
		t.Errorf("%d documents were accepted, and %d as services of an application, want 30 and 3", accepted, alone)
	}
}

// deleteApplication deletes the only application.
func (o oakestra) deleteApplication(t *testing.T, token, id string) {
	t.Helper()
	_, _ = o.send(t, token, "DELETE", "/api/application/"+id, "")
	eventually(t, id+" is deleted", func() bool {
		_, text := o.send(t, token, "GET", "/api/applications", "")
		return string(text) == `"[]"`
	})
}

// uploadServices does what Oakestra's dashboard does with a list of services on the page of an application: it sends
// each in an SLA with that application.
func (o oakestra) uploadServices(t *testing.T, token, name string, doc []byte) {
	t.Helper()
	var file struct {
		Services []json.RawMessage `json:"microservices"`
	}
	check(t, json.Unmarshal(doc, &file))
	const sla = `{"sla_version":"v2.0","customerID":"65f","applications":[{"applicationID":%q,"application_name":"shop","application_namespace":"test","application_desc":"","microservices":[%s]}],"args":[""]}`
	if status, text := o.send(t, token, "POST", "/api/application/", fmt.Sprintf(sla, "", "")); status != http.StatusOK {
		t.Fatalf("an application without services: status %d: %s", status, text)
	}
	for i, s := range file.Services {
		if status, text := o.send(t, token, "POST", "/api/service/", fmt.Sprintf(sla, "acme~shop.test", s)); status != http.StatusOK {
			t.Errorf("%s: service %d: status %d: %s", name, i, status, text)
		}
	}
	var once string
	var services []json.RawMessage
	_, text := o.send(t, token, "GET", "/api/services/acme~shop.test", "")
	check(t, json.Unmarshal(text, &once))
	check(t, json.Unmarshal([]byte(once), &services))
	if len(services) != len(file.Services) {
		t.Errorf("%s: the application has %d services, want %d: %s", name, len(services), len(file.Services), text)
	}
	o.deleteApplication(t, token, "acme~shop.test")
}

// TestOakestrasAPIGivesNoMoreRights tries with the tokens of others, and none, what the native API refuses.
func TestOakestrasAPIGivesNoMoreRights(t *testing.T) {
	o := startOakestra(t, func(*root.Config) {})
	o.user(t, "acme/alice", "Application_Provider")
	o.user(t, "evil/mallory", "Application_Provider")
	token := func(user string) string {
		var s struct {
			Token string `json:"token"`
		}
		_, text := o.send(t, "", "POST", "/api/auth/login", `{"username":"`+user+`","password":"correct horse battery"}`)
		check(t, json.Unmarshal(text, &s))
		return s.Token
	}
	alice, mallory := token("acme/alice"), token("evil/mallory")
	sla := `{"sla_version":"v2.0","customerID":"acme","applications":[{"application_name":"a","application_namespace":"p","microservices":[{"microservice_name":"x","microservice_namespace":"p","virtualization":"container","code":"x:1","memory":1}]}]}`
	if status, text := o.send(t, alice, "POST", "/api/application", sla); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, text)
	}
	for _, who := range []struct {
		name, token string
		statuses    []int
	}{{"nobody", "", []int{401}}, {"a forged token", "a.b.c", []int{401}}, {"another tenant", mallory, []int{403, 404}}} {
		for _, r := range []string{
			"GET /api/application/acme~a.p", "DELETE /api/application/acme~a.p", "GET /api/services/acme~a.p", "GET /api/service/acme~a.p.x.p",
			"DELETE /api/service/acme~a.p.x.p", "POST /api/service/acme~a.p.x.p/instance", "DELETE /api/service/acme~a.p.x.p/instance/-1",
			"GET /api/permission/alice",
		} {
			method, path, _ := strings.Cut(r, " ")
			if status, text := o.send(t, who.token, method, path, ""); !slices.Contains(who.statuses, status) {
				t.Errorf("%s: %s: status %d, want one of %v: %s", who.name, r, status, who.statuses, text)
			}
		}
	}
	if status, _ := o.send(t, mallory, "POST", "/api/application", strings.Repeat("x", 2<<20)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of 2 MiB: status %d", status)
	}
	if status, text := o.send(t, "", "GET", "/v1/apps", ""); status != http.StatusNotFound {
		t.Errorf("the native API over plain HTTP: status %d, want 404: %s", status, text)
	}
	for _, a := range []string{"[null]", `{"applications":[null]}`, `{"applications":[{"microservices":[null]}]}`, `{"applications":{}}`, `{}`, `null`, ``} {
		if status, text := o.send(t, mallory, "POST", "/api/application", a); status != http.StatusUnprocessableEntity {
			t.Errorf("%s: status %d, want 422: %s", a, status, text)
		}
	}
}
