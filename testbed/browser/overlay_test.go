//go:build linux

package browser

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// An operator sees the addresses, tunnels and routes of nodes behind NATs, the load of a container there, its
// output, and a terminal in it with its size and its exit code; and loses the terminal with the right to it.
func TestDashboardOfAnOverlay(t *testing.T) {
	t.Parallel()
	programtest.NeedRoot(t)
	programtest.Need(t, "chromium", "containerd", "runc", "nft", "conntrack")
	o := lab.NewOverlay(t, lab.Options{}, "--dead", "30s")
	o.Node(o.First, netlab.Symmetric)
	o.Node(o.First, netlab.PortRestricted)
	o.Ready(o.First, 2)
	talk := lab.On(o.Container("talk", 1), "c1", "n1")
	talk.Cmd = []string{"/app", "log", "20"}
	server := lab.On(o.Server("web", 1), "c1", "n1")
	server.Replicas, server.Scale = nil, &api.Scale{Max: 2, Requests: &api.RequestGoal{Target: 1_000_000, Port: 80, Counter: "http_requests_total"}}
	server.Addresses = &api.Addresses{RoundRobin: "auto", Closest: "auto"}
	caller := lab.On(o.Container("client", 1), "c1", "n0")
	caller.Connectivity = []api.Connectivity{{Target: "web", Constraints: []api.LinkConstraint{{Type: "latency", Threshold: 900}}}}
	o.Apply(lab.App("shop", caller, server, talk))
	keeper := lab.On(o.Container("keeper", 1), "c1", "n0")
	keeper.Volumes = []api.Volume{{Name: "pages", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 16}}
	o.Apply(lab.App("vault", keeper))
	for _, name := range []string{"client", "web", "talk"} { // web#1 is dormant
		o.Wait(name+" runs", lab.Is(o.ID("shop", name, 0), func(i api.Instance) bool { return i.State == api.Running }))
	}
	// The page shows a tunnel, a route and requests while there are some: a few in a second, which leave the processors to the rest.
	client0, address := o.Inside(o.ID("shop", "client", 0)), netip.AddrPortFrom(o.Addresses("shop", "web").RoundRobin, 80).String()
	calls := lab.CallBy(func() (api.InstanceID, error) {
		time.Sleep(100 * time.Millisecond)
		return client0.Who(address, 10*time.Second)
	})
	t.Cleanup(calls.Stop)
	calls.More(t, 3)

	ctx := t.Context()
	invited, err := o.API.CreateUser(ctx, "olga", "Admin")
	if err != nil {
		t.Fatal(err)
	}
	unknown := o.Client(nil)
	defer unknown.Close()
	if _, err := unknown.Redeem(ctx, api.Redeem{User: "olga", Code: invited.Code, Password: password}); err != nil {
		t.Fatal(err)
	}
	b := open(t, "https://"+o.RootLink.Addr())
	b.signIn("olga", password)
	b.press("Network")
	web := o.Addresses("shop", "web")
	row := func(id string) string {
		return fmt.Sprintf("document.querySelector('tr[data-id=%s]')?.innerText", quoted(id))
	}
	shown := row(string(o.ServiceID("shop", "web")))
	for _, at := range []string{web.RoundRobin.String(), web.Closest.String()} {
		b.until("the address "+at, fmt.Sprintf("%s?.includes(%s)", shown, quoted(at)))
	}
	// n0 sends to n1, by the path that its netmanager reports.
	b.choose("node", "n0")
	b.until("the subnet", fmt.Sprintf("document.body.innerText.includes(%s)", quoted(o.Nodes[0].NetStatus().Subnet.String())))
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		peers := o.Nodes[0].Peers()
		if len(peers) == 1 && peers[0].Node == "n1" && peers[0].Endpoint.IsValid() {
			var is bool
			b.do(chromedp.Evaluate(fmt.Sprintf(`((text) => !!text && [%s, %s, %s].every((s) => text.includes(s)) && / ms/.test(text))(%s)`,
				quoted("n1"), quoted(string(peers[0].Path)), quoted(peers[0].Endpoint.String()), row(peers[0].Key.String())), &is))
			if is {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the page does not show the tunnel %+v:\n%s", peers, b.text())
		}
	}
	b.until("the route to web", `[...document.querySelectorAll('[aria-label=Routes] tr')].some((r) => /web/.test(r.innerText) && /\s[12]( \+ asleep)?\s/.test(r.innerText))`)
	b.look("network-overlay")

	show := func(page string, id any) {
		b.do(chromedp.Evaluate(fmt.Sprintf("location.hash = '#/%s/' + encodeURIComponent(%s)", page, quoted(fmt.Sprint(id))), nil))
	}
	show("app", o.ServiceID("shop", "web").App())
	b.untilFor(3*patience, "the round trip of the link is drawn beside the demanded one", `((e) => e?.textContent.includes('≤ 900 ms') && /✓ (≈ )?[\d.]+ ms/.test(e.textContent))(document.querySelector('.graph .edge'))`)
	b.look("links-overlay")
	show("service", o.ServiceID("shop", "web"))
	b.until("a line of the requests by which it scales", "/requests/.test(document.querySelector('[aria-label=Scaling] tr[data-id]')?.innerText) && document.querySelector('[aria-label=Scaling] .spark polyline')")
	b.look("scaling-overlay")
	calls.Stop()

	id := o.ID("shop", "talk", 0)
	show("instance", id)
	b.until("the output follows", `(document.querySelector('.log')?.innerText.match(/\n/g) || []).length > 20`)
	b.until("lines of what it uses", "document.querySelectorAll('.load .spark polyline').length === 4")
	b.fill("program", "/app size")
	b.press("Open terminal")
	const screen = "document.querySelector('.xterm-rows')?.innerText"
	b.until("the size of the terminal", "/\\d+x24/.test("+screen+")")
	columns := func() (n float64) {
		b.do(chromedp.Evaluate("Math.min(1e9, ...[...("+screen+" || '').matchAll(/(\\d+)x24/g)].map((m) => +m[1]))", &n)) // it may be drawn just now
		return n
	}
	wide := columns()
	// Terminals are drawn only where they can be seen.
	b.do(chromedp.EmulateViewport(700, 900), chromedp.Evaluate("document.querySelector('.terminal').scrollIntoView(), document.querySelector('.xterm-helper-textarea').focus()", nil))
	for end := time.Now().Add(patience); columns() >= wide; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the terminal has %v columns after the window became narrower, want less than %v", columns(), wide)
		}
	}
	b.do(chromedp.KeyEvent("c", chromedp.KeyModifiers(input.ModifierCtrl)))
	b.shows("ended with exit code 0")
	b.fill("program", "/app exit 7")
	b.press("Open again")
	b.shows("ended with exit code 7")
	b.do(chromedp.EmulateViewport(1280, 900))
	b.look("instance-overlay")

	b.click("back to the service", "[...document.querySelectorAll('.path a')].pop()")
	b.until("the load of the instance", fmt.Sprintf("document.querySelectorAll('tr[data-id=%s] .spark polyline').length === 2", quoted(string(id))))
	b.look("service-overlay")

	// A volume is in use, outlives its application, and is deleted. The page follows events only.
	kept := o.ID("vault", "keeper", 0)
	o.Wait("the keeper runs", lab.Is(kept, func(i api.Instance) bool { return i.State == api.Running }))
	b.onlyEvents()
	b.press("Resources")
	b.press("Volumes")
	volume := row(string(kept) + ":pages")
	b.until("the volume is in use", fmt.Sprintf("((text) => /in use/.test(text) && !/not in use/.test(text) && /c1/.test(text) && /16 MiB/.test(text))(%s || '')", volume))
	b.look("volumes-in-use")
	if _, err := o.API.DeleteApp(ctx, kept.Service().App(), 0); err != nil {
		t.Fatal(err)
	}
	b.until("the volume is not in use", fmt.Sprintf("/not in use/.test(%s || '')", volume))
	b.look("volumes")
	b.press("Delete")
	b.shows("It deletes the volume and its data at once.")
	b.press("Delete")
	b.shows("No volume exists.")

	// The right to run processes ends.
	show("instance", id)
	b.shows("Each terminal is recorded in the events")
	b.expectRefusals()
	if _, err := o.API.SetUser(ctx, client.User{ID: "olga", Roles: []string{"Infrastructure_Provider"}}); err != nil {
		t.Fatal(err)
	}
	b.until("the terminal is refused", `(() => {
		if (/refused, or the connection broke|Sign in/.test(document.body.innerText)) return true;
		[...document.querySelectorAll('button')].find((e) => e.innerText === 'Open terminal')?.click();
	})()`)
}
