//go:build linux

package browser

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/dev"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// The jobs share one installation, because it takes seconds to start.
func TestDashboard(t *testing.T) {
	t.Parallel()
	in := install(t)
	t.Run("developer", in.developer)
	t.Run("console", in.console)
	t.Run("reader", in.reader)
	t.Run("custom resources", in.customResources)
	t.Run("extras", in.extras)
	t.Run("operator", in.operator)
	t.Run("administrator", in.administrator)
	t.Run("provider", in.provider)
	t.Run("cluster", in.ofCluster)
}

// A developer signs in with a code, watches an application start, scales it, asks why an instance is
// where it is, and deletes the application.
func (in *installation) developer(t *testing.T) {
	in.t = t
	code := in.invite("acme/dora", "Application_Provider")
	b := open(t, in.URL)
	b.shows("Sign in")
	b.look("signin")
	b.press("I have a sign-in code")
	b.fill("user", "acme/dora")
	b.fill("code", code)
	b.fill("password", password)
	b.press("Sign in")
	b.shows("No application is deployed.")
	b.shows("treeline apply")

	in.deploy(b)
	in.apply("shop", `"log","20"`, 16, 1)
	b.press("Applications")
	b.shows("acme/shop.prod")
	b.until("shop runs", `document.querySelector('tr[data-id="acme/shop.prod"]')?.innerText.includes("1 / 1")`)
	b.look("applications")
	// By keys alone: over the link that skips the navigation, to the application.
	b.do(chromedp.Evaluate("document.activeElement.blur()", nil))
	b.tabTo("Skip to the content")
	b.keys(kb.Enter)
	b.tabTo("acme/shop.prod")
	b.keys(kb.Enter)
	b.shows("Services")
	b.look("application")
	b.press("web")
	b.shows("#0")
	b.fill("replicas", "3")
	b.press("Scale")
	b.until("three instances run", "document.querySelectorAll('tr[data-id] .state.good').length === 3")
	b.shows("Load not measured") // of processes
	b.look("service")
	b.press("#2")
	b.shows("Why it is there")
	b.until("the lifecycle ends with running", "[...document.querySelectorAll('.lifecycle .state')].pop()?.innerText.includes('running')")
	b.until("times between the states", "document.querySelectorAll('.lifecycle .took').length >= 3")
	b.shows("2 clusters considered")
	b.look("instance")

	// The session survives a reload, and nothing of it is in a cookie.
	b.do(chromedp.Reload())
	b.shows("Why it is there")
	var cookies string
	b.do(chromedp.Evaluate("document.cookie", &cookies))
	if cookies != "" {
		t.Errorf("the page has the cookies %q, want none", cookies)
	}

	in.apply("large", `"sleep"`, 1<<20, 1)
	b.press("Overview")
	b.shows("Needs attention")
	b.look("overview")
	b.press("large.prod.web.v1")
	b.press("#0")
	b.shows("Why it is not placed")
	b.shows("Nearest miss")
	b.look("unplaceable")

	b.press("Applications")
	b.press("acme/shop.prod")
	b.press("Delete")
	b.shows("3 running instances of 1 service")
	b.look("delete")
	b.press("Keep")
	b.press("Delete")
	b.press("Delete")
	b.shows("There is no such application.")
	b.press("Events")
	b.shows("deleted")
	b.look("events")

	b.press("Sign out")
	b.shows("Password")
	b.do(chromedp.Reload())
	b.shows("Password")
}

// A developer defines a kind of custom resources, gets the faults of a resource at their lines, sees what a program changes, edits
// and deletes.
func (in *installation) customResources(t *testing.T) {
	in.t = t
	in.user("acme/cora", "Application_Provider")
	b := open(t, in.URL)
	b.signIn("acme/cora", password)
	b.press("Resources")
	b.shows("No kind of custom resources is defined.")
	b.shows("treeline apply -f kind.yaml")
	b.look("kinds-none")
	b.press("New kind")
	b.until("a kind to begin with", "document.querySelector('[name=document]')?.value.includes('name: sensor')")
	b.edit("type: string", "typ: string")
	b.press("Save")
	b.until("the fault is at its line", `[...document.querySelectorAll('.faults li')].some((l) => l.innerText.includes('typ') || l.innerText.includes('keyword'))`)
	b.forgive("422")
	b.edit("typ: string", "type: string")
	b.press("Save")
	b.shows("There is no resource of this kind.")
	b.press("New resource")
	b.until("a resource to begin with", "document.querySelector('[name=document]')?.value.includes('place:')")
	b.edit("name: ''", "name: roof")
	b.edit("place: ''", "place: 3\n  unit: K")
	b.press("Save")
	b.until("both faults are at their lines", `(() => {
		const lines = document.querySelector('[name=document]').value.split('\n');
		const said = [...document.querySelectorAll('.faults li')].map((l) => +/line (\d+)/.exec(l.innerText)?.[1]);
		return said.length === 2 && lines[said[0] - 1].includes('place: 3') && lines[said[1] - 1].includes('unit: K');
	})()`)
	b.forgive("422")
	b.look("resource-faults")
	b.edit("place: 3", "place: roof")
	b.edit("unit: K", "unit: C")
	b.press("Save")
	b.until("the resource is shown", "location.hash.includes('roof') && document.querySelector('[name=document]')?.value.includes('unit: C')")
	b.shows("created")
	b.press("JSON")
	b.until("it is JSON", `document.querySelector('[name=document]').value.includes('"unit": "C"')`)
	b.edit(`"C"`, `"F"`)
	// A program changes it meanwhile.
	ctx := t.Context()
	_, err := in.admin.ReplaceResource(ctx, "acme/sensor:roof", api.NewCustomResource{Spec: json.RawMessage(`{"place":"attic"}`)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	b.shows("since it was loaded.")
	b.press("Save")
	b.shows("It was changed meanwhile.")
	b.forgive("412")
	b.press("Load again")
	b.until("the program's change is shown", "document.querySelector('[name=document]')?.value.includes('place: attic')")
	b.edit("attic", "cellar")
	b.press("Save")
	b.until("a change without a conflict is saved", "!document.querySelector('.stale') && document.querySelector('[name=document]')?.value.includes('cellar') && document.body.innerText.includes('updated')")
	b.look("resource")
	lab.Within(t, patience, "the resource is in the cellar, by acme/cora", func() error { // the page has shown an earlier update, too
		r, err := in.admin.CustomResource(ctx, "acme/sensor:roof")
		if err == nil && (string(r.Spec) != `{"place":"cellar"}` || r.By != "acme/cora") {
			err = fmt.Errorf("it is %+v", r)
		}
		return err
	})
	b.press("acme/sensor")
	b.until("the resource is listed", `!!document.querySelector('tr[data-id="acme/sensor:roof"]')`)
	if _, err := in.admin.CreateResource(ctx, "acme", api.NewCustomResource{Kind: "sensor", Name: "door", Spec: json.RawMessage(`{"place":"door"}`)}); err != nil {
		t.Fatal(err)
	}
	b.until("that of a program appears", `!!document.querySelector('tr[data-id="acme/sensor:door"]')`)
	b.look("kind")
	b.press("door")
	b.press("Delete")
	b.press("Delete")
	b.shows("There is no such resource.")
	b.press("Resources")
	b.until("the kind is listed with its resource", `document.querySelector('tr[data-id="acme/sensor"]')?.innerText.includes('1')`)
	b.look("kinds")
	b.press("acme/sensor")
	b.press("Delete")
	b.shows("It deletes the kind with its 1 resource.")
	b.press("Delete")
	b.shows("There is no such kind.")
}

// A developer finds the next command where nothing is, creates, replaces and deletes a secret whose value is never shown, makes a
// webhook, sees an addon, and then who did all this.
func (in *installation) extras(t *testing.T) {
	in.t = t
	ctx := t.Context()
	in.user("acme/vera", "Application_Provider")
	b := open(t, in.URL)
	b.signIn("acme/vera", password)
	b.onlyEvents()
	b.press("Resources")
	b.press("Volumes")
	b.shows("treeline get volumes")
	b.look("volumes-none")
	b.press("Addons")
	b.shows("treeline addon install")
	b.look("addons-none")
	if _, err := in.admin.InstallAddon(ctx, "acme", api.NewAddon{Package: api.AddonPackage{
		Name: "lamps", Version: "1.2.3", Description: "Lamps of a building", Kinds: []api.NewCustomKind{{Name: "lamp", Schema: json.RawMessage(`{"type":"object"}`)}},
	}, Source: "lamps.tar"}); err != nil {
		t.Fatal(err)
	}
	b.until("the addon appears with its version", `document.querySelector('tr[data-id="acme/lamps"]')?.innerText.includes('1.2.3')`)
	b.look("addons")

	b.press("Secrets and configs")
	b.shows("treeline create secret")
	b.look("values-none")
	const hidden = "p4ss-w0rd-ü"
	b.fill("object", "db")
	b.fill("value0", hidden)
	b.press("Create")
	b.until("the secret is listed", `document.querySelector('tr[data-id="secret acme/db"]')?.innerText.includes('value')`)
	b.look("values")
	b.press("acme/db")
	b.shows("New version")
	b.press("Add key")
	b.fill("value0", hidden)
	b.fill("key1", "user")
	b.fill("value1", "shop")
	b.press("Save")
	b.until("the second version is shown", `document.querySelector('.facts')?.innerText.includes('user') && document.querySelector('.facts').innerText.includes('\n2\n')`)
	b.until("no value is on the page", fmt.Sprintf("!document.body.innerText.includes(%s) && [...document.querySelectorAll('textarea')].every((e) => !e.value)", quoted(hidden)))
	b.look("secret")
	lab.Within(t, patience, "the secret has the sizes of both values", func() error {
		v, err := client.Get[api.Values](ctx, in.admin, "/v1/secrets/acme~db")
		if err == nil && (v.Version != 2 || v.By != "acme/vera" || len(v.Keys) != 2 || v.Keys[1].Bytes != len(hidden)) {
			err = fmt.Errorf("it is %+v", v)
		}
		return err
	})
	b.press("Delete")
	b.shows("No service uses it.")
	b.press("Delete")
	b.shows("There is no such secret.")
	b.forgive("404")

	b.press("Resources")
	b.press("Webhooks")
	b.shows("treeline webhook create")
	b.fill("url", "https://hooks.invalid/treeline")
	b.fill("kinds", "app, config")
	b.press("Create webhook")
	b.until("the secret is shown", "document.querySelector('.made code')?.innerText.length > 20")
	b.look("webhooks")
	b.press("https://hooks.invalid/treeline")
	b.shows("Every event was delivered")
	b.look("webhook")
	if _, err := in.admin.CreateValues(ctx, api.KindConfig, "acme", api.NewValues{Name: "motd", Data: map[string][]byte{"text": []byte("hi")}}); err != nil {
		t.Fatal(err)
	}
	lab.Within(t, patience, "the event is a dead letter", func() error {
		all, err := in.admin.Webhooks(ctx)
		if err != nil || len(all) != 1 {
			return fmt.Errorf("webhooks: %+v, %w", all, err)
		}
		if len(all[0].Dead) > 0 {
			return nil
		}
		err = fmt.Errorf("after %d tries: %s", all[0].Tries, all[0].Error)
		if all[0].Next.IsZero() {
			return err // it tries now
		}
		// Without the pauses between tries, of an hour and a half in all.
		return errors.Join(err, in.admin.RetryWebhook(ctx, all[0].ID))
	})
	b.until("the dead letter is shown", `(([...rows]) => rows.length === 1 && rows[0].innerText.includes('motd'))(document.querySelectorAll('[aria-label="Dead letters"] tbody tr'))`)
	b.until("the last error is shown", "document.querySelector('.facts')?.innerText.includes('Last error')")
	b.look("webhook-dead")
	b.press("Send again")
	b.shows("It sends the 1 dead letter once more")
	b.press("Send again")
	b.press("Delete")
	b.press("Delete")
	b.shows("There is no such webhook.")
	b.forgive("404")

	b.press("Events")
	b.until("an event says that the webhook failed", "[...document.querySelectorAll('[aria-label=Events] tbody tr')].some((r) => r.innerText.includes('is a dead letter after 8 tries'))")
	b.press("Who did what")
	b.fill("object", "secret acme/db")
	b.until("the secret's records are shown with their user", `(([...rows]) => rows.length === 3 && rows.every((r) => r.innerText.includes('acme/vera')))(document.querySelectorAll('[aria-label=Records] tbody tr'))`)
	b.look("records")
	b.fill("user", "nobody")
	b.shows("No record matches.")
}

// An operator sees the nodes of the clusters with their load, and what runs on one; cordons, drains, limits it, and takes it back;
// opens and limits a cluster; gets the lines with which a cluster and a node join; and reads who reached instances.
func (in *installation) operator(t *testing.T) {
	in.t = t
	in.user("carl", "Admin")
	b := open(t, in.URL)
	b.signIn("carl", password)
	b.press("Clusters")
	b.until("the tree has both clusters", "document.querySelectorAll('.tree a[href^=\"#/cluster/\"]').length === 2")
	b.until("the tree has the nodes with their load", "document.querySelectorAll('.tree [data-node] .spark polyline').length === 3")
	b.look("clusters")
	b.press("c1")
	b.until("the nodes are listed", `document.querySelector('tr[data-id="c1-n1"]')?.innerText.includes('ready')`)
	b.look("cluster")

	b.press("c1-n1")
	b.shows("Runs here")
	b.until("lines of what the machine uses", "document.querySelectorAll('[aria-label=Load] .spark polyline').length >= 2")
	b.look("node")
	state := func(want string) {
		t.Helper()
		b.until("the node is "+want, fmt.Sprintf("document.querySelector('.title .state')?.innerText.includes(%s)", quoted(want)))
	}
	b.press("Cordon")
	state("cordoned")
	b.press("Uncordon")
	state("ready")
	b.press("Drain")
	b.look("drain")
	b.press("Drain")
	state("draining (no instance is left)")
	b.look("node-drained")
	b.press("Uncordon")
	state("ready")
	b.fill("cap-vcpus", "1.5")
	b.press("Limit")
	b.shows("Now: 1.5 processors.")
	b.until("the node reports more than it counts for", "document.querySelector('.facts')?.innerText.includes('Capped')")
	b.fill("cap-vcpus", "0")
	b.press("Limit")
	b.shows("There is none now.")

	b.press("c1")
	b.press("Create join token")
	b.shows("--token-file -")
	b.press("Open")
	b.press("Open")
	b.shows("all tenants")
	b.press("Close")
	b.press("Close")
	b.until("the cluster is closed", "!document.body.innerText.includes('all tenants')")
	b.fill("cap-nodes", "16")
	b.press("Limit")
	b.shows("Now: 16 nodes.")

	b.press("Events")
	b.choose("what", "3")
	b.fill("filter", "JOINED")
	b.until("only that the clusters joined is shown", `((rows) => rows.length === 2 && rows.every((r) => r.innerText.includes('joined')))([...document.querySelectorAll('[aria-label=Events] tbody tr')])`)
	b.fill("filter", "no such text")
	b.shows("No event matches.")
	b.look("events-filtered")
	b.press("Network")
	b.shows("No node of this cluster has an overlay network.")
	b.look("network")
	b.press("Access")
	b.choose("kind", "cluster")
	b.fill("new-cluster", "munich")
	b.press("Create join token")
	b.until("the line with which a cluster joins", "/cluster/.test(document.querySelector('.made code')?.innerText)")
	b.until("the token is listed", "document.querySelector('[aria-label=\"Join tokens\"]')?.innerText.includes('munich')")
	b.look("join")
	b.press("API")
	b.shows("OpenAPI document")
	b.look("api")
}

// An administrator creates a tenant and a person, changes a person's rights, resets a password, changes the own one, and makes a
// personal token with some of the rights, which it revokes.
func (in *installation) administrator(t *testing.T) {
	in.t = t
	ctx := t.Context()
	in.user("ada", "Admin")
	if _, err := in.admin.SetUser(ctx, client.User{ID: "ada", Roles: []string{"Admin", "Infrastructure_Provider"}}); err != nil {
		t.Fatal(err)
	}
	in.user("acme/gus", "Application_Provider")
	b := open(t, in.URL)
	b.signIn("ada", password)
	b.press("Access")
	b.fill("path", "edge")
	b.press("Add tenant")
	b.until("the tenant is listed", `!!document.querySelector('tr[data-id="edge"]')`)
	b.fill("person", "edge/nina")
	b.choose("role", "Infrastructure_Provider")
	b.press("Add person")
	b.until("the person is listed", `document.querySelector('tr[data-id="edge/nina"]')?.innerText.includes('has not signed in')`)
	b.until("the code is shown", "document.querySelector('.made code')?.innerText.length > 8")
	b.look("access")

	row := `document.querySelector('tr[data-id="acme/gus"]')`
	open := func(button string) {
		t.Helper()
		b.click("the button "+button, fmt.Sprintf("[...(%s?.querySelectorAll('td > .buttons > button') || [])].find((e) => e.innerText === %s)", row, quoted(button)))
	}
	open("Change")
	b.click("a role", "document.querySelector('dialog[open] [value=Infrastructure_Provider]')")
	b.look("rights")
	b.press("Change")
	b.until("the role is listed", row+"?.innerText.includes('Infrastructure Provider')")
	open("Reset password")
	b.press("Reset password")
	b.shows("The code for acme/gus to set a new password")
	var code string
	b.do(chromedp.Evaluate("document.querySelector('.made code').innerText", &code))
	const other = "another battery staple"
	if _, err := in.client("").Redeem(ctx, api.Redeem{User: "acme/gus", Code: code, Password: other}); err != nil {
		t.Fatalf("the code %q of the page: %v", code, err)
	}

	b.fill("name", "nightly")
	b.click("a role of the token", "document.querySelector('[name=token-roles][value=Infrastructure_Provider]')")
	b.fill("days", "5")
	b.press("Create token")
	made := "document.querySelector('[aria-label=\"Your tokens\"] .made code')"
	b.until("the token is shown", made+"?.innerText.length > 20")
	b.until("the token has the role and an end", `(([text]) => text && !text.includes('Admin') && text.includes('in 5 d'))([...document.querySelectorAll('[aria-label="Personal tokens"] tbody tr')].map((r) => r.innerText))`)
	b.look("tokens")
	var token string
	b.do(chromedp.Evaluate(made+".innerText", &token))
	script := in.client(token)
	if _, _, err := script.Clusters(ctx, client.ListOptions{}); err != nil {
		t.Errorf("the clusters with the token of the page: %v", err)
	}
	if _, err := script.CreateUser(ctx, "edge/eve", "Application_Provider"); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("a person is created with a token without that right: %v", err)
	}
	b.click("revoke the token", `document.querySelector('[aria-label="Personal tokens"] td > button')`)
	b.press("Revoke")
	b.shows("You have no personal token.")
	if _, _, err := script.Clusters(ctx, client.ListOptions{}); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("the clusters with a revoked token: %v", err)
	}

	b.fill("old-password", "wrong")
	b.fill("new-password", other)
	b.press("Change password")
	b.shows("the present password is wrong")
	b.forgive("403")
	b.expectRefusals() // the change ends the session, and the page begins another
	b.fill("old-password", password)
	b.fill("new-password", other)
	b.press("Change password")
	b.shows("The password is changed.")
	b.press("Clusters")
	b.until("the session goes on", "document.querySelectorAll('.tree a').length > 0 && document.querySelector('.freshness').innerText.includes('live')")
}

// A provider joins a machine to its cluster with the token that the page makes, sees what runs on it, and leaves.
func (in *installation) provider(t *testing.T) {
	in.t = t
	in.user("acme/pat", "Infrastructure_Provider")
	b := open(t, in.URL)
	b.fill("user", "acme/pat")
	b.fill("password", password)
	b.keys(kb.Enter)
	b.shows("Overview")
	b.until("pages for applications are not offered", "!document.querySelector('nav').innerText.includes('Deploy')")
	b.until("nor shown", "document.querySelector('.tile') && !/instances run|No application/.test(document.body.innerText)")
	b.look("overview-provider")
	for _, page := range []string{"Network", "Access", "Events"} {
		b.press(page)
		b.until("the page is there", fmt.Sprintf("document.querySelector('h1').innerText === %s", quoted(page)))
		b.look(strings.ToLower(page) + "-provider")
	}
	b.press("Clusters")
	b.press("c2")
	b.press("Create join token")
	var line string
	b.until("the line with which a machine joins", "document.querySelector('.made code')")
	b.do(chromedp.Evaluate("document.querySelector('.made code').innerText", &line))
	stop := in.join(line, "edge-7")
	b.until("the machine has joined", `document.querySelector('tr[data-id="edge-7"]')?.innerText.includes('ready')`)
	in.deployOn("edge-7")
	b.press("edge-7")
	b.until("the page shows what runs there", `document.querySelector('tr[data-id="acme/here.prod.web.v1#0"]')?.innerText.includes('running')`)
	b.look("node-provider")
	b.press("Remove")
	b.look("leave")
	b.press("Remove")
	b.shows("No such node is in the cluster, or it has been removed.")
	b.look("node-removed")
	stop()
	if _, err := in.admin.DeleteApp(t.Context(), "acme/here.prod", 0); err != nil {
		t.Error(err)
	}
}

// join starts a node engine with the token of a line that joins a machine, as the line's script does. The returned function stops it.
func (in *installation) join(line, name string) (stop func()) {
	in.t.Helper()
	token := regexp.MustCompile(`\bTL1\.[\w.-]+`).FindString(line)
	if token == "" {
		in.t.Fatalf("the line has no token: %s", line)
	}
	data := folder(in.t)
	group := "treeline-browser-" + filepath.Base(data)
	in.t.Cleanup(func() { // a node leaves the parents of its workloads' cgroups
		for _, at := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			left, _ := filepath.Glob(at + group)
			for _, dir := range left {
				_ = os.Remove(filepath.Join(dir, "shims"))
				_ = os.Remove(dir)
			}
		}
	})
	var out bytes.Buffer
	c := exec.Command(os.Getenv(programs)+"/node-engine", "--data", data, "--name", name, "--runtime", "process", "--containerd-network", "host",
		"--process-allow", os.Getenv(programs), "--process-cgroup-parent", "/"+group, "--cpus", "1", "--memory", "256", "--token-file", "-")
	c.Stdin = strings.NewReader(token)
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		in.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait()
		if in.t.Failed() {
			in.t.Logf("node engine %s:\n%s", name, out.String())
		}
	})
	in.t.Cleanup(stop)
	return stop
}

// deployOn deploys an application of one service on a node.
func (in *installation) deployOn(node string) {
	in.t.Helper()
	doc := fmt.Sprintf(`{"sla_version":"v2.0","applications":[{"application_name":"here","application_namespace":"prod","microservices":[
		{"microservice_name":"web","microservice_namespace":"v1","virtualization":"process","code":%q,"cmd":["log","20"],"memory":16,"constraints":[{"type":"direct","node":%q}]}]}]}`,
		in.workload, node)
	if _, err := in.admin.Apply(in.t.Context(), []byte(doc), client.ApplyOptions{Tenant: "acme"}); err != nil {
		in.t.Fatal(err)
	}
}

// The operator of a cluster signs in to its own dashboard with the cluster's token.
func (in *installation) ofCluster(t *testing.T) {
	in.t = t
	in.apply("own", `"log","20"`, 16, 1)
	var on api.ClusterID
	for end := time.Now().Add(patience); on == ""; time.Sleep(20 * time.Millisecond) {
		i, err := in.admin.Instance(t.Context(), "acme/own.prod.web.v1#0")
		if err != nil || time.Now().After(end) {
			t.Fatalf("the instance is not on a cluster: %+v, %v", i, err)
		}
		on = i.Cluster
	}
	i := slices.IndexFunc(in.Daemons, func(d dev.Daemon) bool { return d.Kind == "cluster" && strings.HasSuffix(d.Name, string(on)) })
	token, err := os.ReadFile(filepath.Join(in.Daemons[i].Data, "operator-token"))
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, "https://"+in.Daemons[i].Address)
	b.shows("Operator token")
	b.fill("token", "wrong")
	b.press("Sign in")
	b.until("a wrong token is refused", "!!document.querySelector('.failure')")
	b.forgive("401")
	b.fill("token", strings.TrimSpace(string(token)))
	b.press("Sign in")
	b.onlyEvents()
	b.shows("connected to the root")
	b.until("the nodes are listed", "document.querySelectorAll('tr[data-id] .state.good').length > 0")
	b.look("own")
	b.click("wait for a node", "document.querySelector('tr[data-id] a[href^=\"#/node/\"]')")
	b.until("lines of what the machine uses", "document.querySelectorAll('[aria-label=Load] .spark polyline').length >= 2")
	b.look("own-node")
	b.press("Cordon")
	b.until("the node is cordoned", "document.querySelector('.title .state')?.innerText.includes('cordoned')")
	b.press("Uncordon")
	b.until("the node is ready", "document.querySelector('.title .state')?.innerText.includes('ready')")
	b.press("Instances")
	row := `document.querySelector('tr[data-id="acme/own.prod.web.v1#0"]')`
	b.until("the instance runs", "!!"+row+"?.querySelector('.state.good')")
	b.click("wait for the instance", row+"?.querySelector('a')")
	b.until("the output follows", `(document.querySelector('.log')?.innerText.match(/\n/g) || []).length > 5`)
	b.press("Open terminal")
	b.until("the shell has a prompt", "document.querySelector('.xterm-rows')?.innerText.includes('$')")
	b.keys("exit 3\r")
	b.shows("ended with exit code 3")
	b.look("own-instance")
	b.press("Events")
	b.shows("exit code 3")
	b.until("the records name the operator", "[...document.querySelectorAll('[aria-label=Records] tbody tr')].some((r) => /operator|root/.test(r.children[2].innerText))")
	b.look("own-events")
	b.press("Access")
	b.press("Create join token")
	b.shows("--token-file -")
	b.press("Show operators")
	b.shows("No other operator has a token.")
	b.fill("operator", "night")
	b.press("Create operator token")
	b.until("the operator is listed", `!!document.querySelector('tr[data-id="night"]')`)
	b.look("own-access")
	b.click("revoke the operator's token", `document.querySelector('tr[data-id="night"] td > button')`)
	b.press("Revoke")
	b.shows("No other operator has a token.")
}

// deploy writes an SLA with the form, gets its faults at their lines, draws a link, sees the plan,
// applies it, and changes the application that it made.
func (in *installation) deploy(b *tab) {
	b.press("Deploy one")
	for _, name := range []string{"pre", "detect"} {
		b.fill("service", name)
		b.choose("virtualization", "process")
		b.fill("code", in.workload)
		b.fill("cmd", "sleep 1h")
		b.fill("memory", "8")
		b.press("Add service")
		b.until("the service is in the text", fmt.Sprintf("document.querySelector('[name=sla]').value.includes(%s)", quoted(quoted(name))))
	}
	b.fill("ms", "900")
	b.press("Link")
	b.until("the link is drawn", "document.querySelector('.graph .edge')?.textContent.includes('900 ms')")
	b.edit(`"memory": 8`, `"memory": -8`)
	b.press("Plan")
	b.until("both faults are at their lines", `(() => {
		const lines = document.querySelector('[name=sla]').value.split('\n');
		const said = [...document.querySelectorAll('.faults li')].map((l) => +/line (\d+): memory is -8/.exec(l.innerText)?.[1]);
		return said.length === 2 && said.every((n) => lines[n - 1].includes('"memory": -8'));
	})()`)
	b.forgive("422")
	b.look("faults")
	b.edit(`"memory": -8`, `"memory": 8`)
	b.press("Plan")
	b.shows("By the view")
	b.look("deploy")
	b.press("Apply")
	b.shows("Change")
	b.until("both services run", "document.querySelectorAll('tr[data-id] .state.good').length >= 2")
	b.look("links")
	b.press("Change")
	b.until("the SLA is in the editor", "document.querySelector('[name=sla]').value.includes('detect')")
	b.edit("1h", "2h")
	b.press("Plan")
	b.shows("1h")

	// A list of services, as Oakestra's dashboard takes it on the page of an application, is added to this one.
	services := fmt.Sprintf(`{"microservices":[{"microserviceID":"","microservice_name":"Demo","microservice_namespace":"demo","virtualization":"process","code":%q,"cmd":["sleep","1h"],"memory":8,"state":"","added_files":[]}]}`, in.workload)
	b.do(chromedp.Evaluate(fmt.Sprintf(`(() => {
		const files = new DataTransfer();
		files.items.add(new File([%s], 'services.json'));
		const input = document.querySelector('[name=file]');
		input.files = files.files;
		input.dispatchEvent(new Event('change', {bubbles: true}));
	})()`, quoted(services)), nil))
	b.shows("The services are added to")
	b.press("Plan")
	b.shows("Demo.demo")
	b.look("deploy-services")
	b.press("Apply")
	b.until("the service is one of three on the application's page", `location.hash.startsWith('#/app/') && [...document.querySelectorAll('tr[data-id]')].some((r) => r.dataset.id.includes('Demo.demo'))`)
	b.press("Applications")
}

// edit replaces all occurrences of a text in the editor.
func (b *tab) edit(old, now string) {
	b.t.Helper()
	b.do(chromedp.Evaluate(fmt.Sprintf(`(() => {
		const t = document.querySelector('.editor textarea');
		t.value = t.value.replaceAll(%s, %s);
		t.dispatchEvent(new Event('input', {bubbles: true}));
	})()`, quoted(old), quoted(now)), nil))
}

// A developer reads the output of an instance, and runs a shell beside it.
func (in *installation) console(t *testing.T) {
	in.t = t
	in.user("acme/erin", "Application_Provider")
	in.apply("talk", `"log","20"`, 16, 1)
	b := open(t, in.URL)
	b.signIn("acme/erin", password)
	b.do(chromedp.Evaluate(`location.hash = "#/instance/acme%2Ftalk.prod.web.v1%230"`, nil))
	b.until("the output follows", `(document.querySelector('.log')?.innerText.match(/\n/g) || []).length > 20`)
	b.press("Open terminal")
	b.until("the terminal has focus", "document.activeElement.className.includes('xterm')")
	b.until("the shell has a prompt", "document.querySelector('.xterm-rows')?.innerText.includes('$')")
	b.keys("stty size; echo a$((40+2))b\r")
	b.until("the shell has computed", "document.querySelector('.xterm-rows')?.innerText.includes('a42b')")
	b.until("the shell knows the size", `/24 \d+/.test(document.querySelector('.xterm-rows')?.innerText)`)
	b.look("terminal")
	size := func() (columns float64) {
		b.do(chromedp.Evaluate("Math.min(...[...document.querySelector('.xterm-rows').innerText.matchAll(/24 (\\d+)/g)].map((m) => +m[1]))", &columns))
		return columns
	}
	wide := size()
	b.do(chromedp.EmulateViewport(700, 900), chromedp.Evaluate("document.querySelector('.xterm-helper-textarea').focus()", nil))
	// The size is sent while the page is drawn again; the shell is asked until it knows it.
	for end := time.Now().Add(patience); size() >= wide; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the shell has %v columns after the window became narrower, want less than %v", size(), wide)
		}
		b.keys("stty size\r")
	}
	b.do(chromedp.Evaluate("document.querySelector('.xterm-helper-textarea').focus()", nil))
	b.keys("exit 7\r")
	b.shows("ended with exit code 7")
	b.until("the access is in the events", "document.body.innerText.includes('exec /bin/sh (in a terminal) by acme/erin')")
	instance := b.hash()
	b.press("Events")
	b.choose("what", "1")
	b.until("all records of access are listed", `((rows) => rows.length >= 2 && rows.every((r) => r.innerText.includes('acme/erin')))([...document.querySelectorAll('[aria-label=Events] tbody tr')])`)
	b.do(chromedp.Evaluate("location.hash = "+quoted(instance), nil))
	b.shows("Each terminal is recorded in the events")

	// A person who was removed meanwhile is refused.
	b.expectRefusals()
	if err := in.admin.DeleteUser(t.Context(), "acme/erin"); err != nil {
		t.Fatal(err)
	}
	b.press("Open terminal")
	b.until("the terminal is refused", "document.body.innerText.includes('refused, or the connection broke') || document.body.innerText.includes('Sign in')")
}
