//go:build linux

package browser

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/dev"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// The jobs share one installation, because it takes seconds to start.
func TestDashboard(t *testing.T) {
	t.Parallel()
	in := install(t)
	t.Run("developer", in.developer)
	t.Run("console", in.console)
	t.Run("custom resources", in.customResources)
	t.Run("operator", in.operator)
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
	b.press("acme/shop.prod")
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

// An operator sees the nodes of the clusters with their load, drains one and takes it back, invites a
// developer, and makes a token for a machine that joins.
func (in *installation) operator(t *testing.T) {
	in.t = t
	in.user("carl", "Admin")
	b := open(t, in.URL)
	b.signIn("carl", password)
	b.press("Clusters")
	b.until("the tree has both clusters", "document.querySelectorAll('.tree a').length === 2")
	b.until("the tree has the nodes with their load", "document.querySelectorAll('.tree [data-node] .spark polyline').length === 3")
	b.look("clusters")
	b.press("c1")
	node := `document.querySelector('tr[data-id="c1-n1"]')`
	b.until("the nodes are listed", node+"?.innerText.includes('ready')")
	b.look("cluster")
	b.click("wait for the node's button", node+"?.querySelector('td > button')")
	b.press("Drain")
	b.until("the node is drained", node+".innerText.includes('Uncordon')")
	b.press("Uncordon")
	b.until("the node is back", node+".innerText.includes('ready')")

	b.press("Network")
	b.shows("No node of this cluster has an overlay network.")
	b.look("network")
	b.press("Access")
	b.fill("person", "acme/fred")
	b.press("Add person")
	b.shows("The code for the first sign-in")
	b.until("the person is listed", `!!document.querySelector('tr[data-id="acme/fred"]')`)
	b.press("Create join token")
	b.shows("--token-file -")
	b.look("access")
	b.press("API")
	b.shows("OpenAPI document")
	b.look("api")
}

// A provider sees no application, and the nodes of its own clusters only.
func (in *installation) provider(t *testing.T) {
	in.t = t
	in.user("acme/pat", "Infrastructure_Provider")
	b := open(t, in.URL)
	b.fill("user", "acme/pat")
	b.fill("password", password)
	b.press("Sign in")
	b.shows("Overview")
	b.until("pages for applications are not offered", "!document.querySelector('nav').innerText.includes('Deploy')")
	for _, page := range []string{"Clusters", "Network", "Access", "Events"} {
		b.press(page)
		b.until("the page is there", fmt.Sprintf("document.querySelector('h1').innerText === %s", quoted(page)))
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
	b.shows("connected to the root")
	b.until("the nodes are listed", "document.querySelectorAll('tr[data-id] .state.good').length > 0")
	b.look("own")
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
	b.press("Access")
	b.press("Create join token")
	b.shows("--token-file -")
	b.look("own-access")
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

	// A person who was removed meanwhile is refused.
	b.expectRefusals()
	if err := in.admin.DeleteUser(t.Context(), "acme/erin"); err != nil {
		t.Fatal(err)
	}
	b.press("Open again")
	b.until("the terminal is refused", "document.body.innerText.includes('refused, or the connection broke') || document.body.innerText.includes('Sign in')")
}
