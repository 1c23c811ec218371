//go:build linux

package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/treeline-edge/treeline/web"
)

// Texts of hostile clusters, nodes, workloads and users.
const (
	markup  = `<img src=x onerror="window.caught=1"><script>window.caught=1</script>`
	control = "\x1b[31mred\x1b]0;title\a\u202egnp.exe\u200b"
)

// hostile is a root whose every text is hostile.
type hostile struct {
	*httptest.Server
	lists atomic.Int32
	reads atomic.Int32 // streams of output that are under way

	mu      sync.Mutex    // guards what follows
	changes []string      // messages of the stream
	since   int           // those that the lists have
	breaks  int           // how often the streams were ended
	resumed []string      // the positions of the requests for the stream
	news    chan struct{} // closed when one of these has changed
}

const evil = "evil/" + markup + ".prod"

func startHostile(t *testing.T) *hostile {
	h := &hostile{news: make(chan struct{})}
	now := time.Now().UTC().Format(time.RFC3339Nano)
	object := func(more string) string {
		text, _ := json.Marshal(markup + control)
		return strings.NewReplacer("TEXT", string(text), "NOW", `"`+now+`"`, "APP", quoted(evil)).Replace(more)
	}
	resources := `{"milli_cpu":1000,"memory_mb":1024}`
	aggregate := fmt.Sprintf(`{"nodes":1,"capacity":%[1]s,"free":%[1]s,"mean":%[1]s,"largest":%[1]s,"std_dev":%[1]s}`, resources)
	long := strings.TrimSuffix(quoted(strings.Repeat(markup, 2000)), `"`) + "\xff\xfe\"" // invalid UTF-8
	event := object(`{"seq":7,"time":NOW,"tenant":"evil","tier":TEXT,"kind":"cluster","object":TEXT,"by":TEXT,"cluster":TEXT,"state":"running","reason":TEXT,"detail":` + long + `}`)
	linked := `{"id":"evil/front","app":APP,"replicas":1,"running":0,"revision":1,"spec_revision":1,"spec":{"microservice_name":"front","microservice_namespace":TEXT,"code":TEXT,"virtualization":TEXT,"connectivity":[{"target_microservice_id":"back","con_constraints":[{"type":"latency","threshold":5}]}]}},
		{"id":"evil/back","app":APP,"replicas":1,"running":0,"revision":1,"spec_revision":1,"spec":{"microservice_name":"back","code":TEXT,"virtualization":TEXT}},`
	secret := `{"id":"evil/db","kind":"secret","tenant":"evil","registry":TEXT,"by":TEXT,"version":3,"digest":TEXT,"services":[TEXT],"keys":[{"name":TEXT,"bytes":5}],"created":NOW,"changed":NOW,"revision":1}`
	hook := `{"id":"wh1","tenant":"evil","url":TEXT,"by":TEXT,"kinds":[TEXT],"reasons":[TEXT],"delivered":3,"tries":2,"lost":1,"error":TEXT,"next":NOW,"created":NOW,"dead":[{"time":NOW,"error":TEXT,"event":` + event + `}]}`
	answers := map[string]string{
		"/v1/auth/login":      object(`{"user":"dora","access":"a","refresh":"r","expires":"2999-01-01T00:00:00Z","roles":["Admin"]}`),
		"/v1/auth/me":         `{"user":` + quoted(markup) + `,"roles":["Admin"]}`,
		"/v1/apps":            object(`{"revision":7,"items":[{"id":APP,"tenant":"evil","created":NOW,"revision":1,"running":0,"wanted":1,"by":TEXT,"services":[APP],"spec":{"application_name":TEXT,"application_namespace":TEXT,"microservices":[]}}]}`),
		"/v1/services":        object(`{"revision":7,"items":[` + linked + `{"id":APP,"app":APP,"replicas":1,"running":0,"revision":1,"spec_revision":1,"spec":{"microservice_name":TEXT,"microservice_namespace":TEXT,"code":TEXT,"virtualization":TEXT}}]}`),
		"/v1/clusters":        object(`{"revision":7,"items":[{"id":TEXT,"status":TEXT,"joined":NOW,"heard":NOW,"location":TEXT,"version":TEXT,"block":0,"instances":1,"revision":1,"grant":{"open":true},"reserved":` + resources + `,"aggregate":` + aggregate + `}]}`),
		"/v1/events":          `{"revision":7,"items":[` + event + `]}`,
		"/v1/instances":       object(`{"revision":7,"items":[{"id":` + quoted(evil+"#0") + `,"service":APP,"number":0,"state":TEXT,"reason":TEXT,"detail":TEXT,"cluster":TEXT,"node":TEXT,"address":TEXT,"created":NOW,"since":NOW,"epoch":1,"placements":1,"restarts":0,"revision":1,"spec_revision":1}]}`),
		"/v1/volumes":         object(`{"revision":7,"items":[{"id":` + quoted(evil+"#0:data") + `,"csi_driver":TEXT,"access_mode":TEXT,"tenant":"evil","cluster":TEXT,"size_mb":64,"created":NOW,"in_use":false,"revision":1}]}`),
		"/v1/snapshots":       object(`{"revision":7,"items":[{"id":TEXT,"csi_driver":TEXT,"tenant":"evil","cluster":TEXT,"size_mb":64,"created":NOW,"ready":true,"revision":1}]}`),
		"/v1/configs":         object(`{"revision":7,"items":[]}`),
		"/v1/secrets":         object(`{"revision":7,"items":[` + secret + `]}`),
		"/v1/secrets/evil~db": object(secret),
		"/v1/tenants":         object(`{"items":[{"path":TEXT},{"path":"evil"}]}`),
		"/v1/webhooks":        object(`{"items":[` + hook + `]}`),
		"/v1/webhooks/wh1":    object(hook),
		"/v1/addons":          object(`{"revision":7,"items":[{"id":"evil/a","name":TEXT,"description":TEXT,"tenant":"evil","version":TEXT,"digest":TEXT,"source":TEXT,"by":TEXT,"app":APP,"kinds":[TEXT],"resources":[TEXT],"webhooks":[TEXT],"created":NOW,"changed":NOW,"revision":1}]}`),
	}
	mux := http.NewServeMux()
	for path, text := range answers {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if path == "/v1/apps" {
				h.lists.Add(1)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(text))
		})
	}
	mux.HandleFunc("/v1/changes", h.stream)
	mux.HandleFunc("/v1/apps/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(object(`{"links":[{"instance":"evil/a.b.front.c#0","to":"back","limit_ns":5000000,"rtt_ns":1e300,"by":TEXT},{"instance":TEXT,"to":TEXT,"limit_ns":-1,"rtt_ns":-5,"by":"node"}],"silent":[TEXT]}`)))
	})
	mux.HandleFunc("/v1/instances/{id}/logs", h.output)
	mux.HandleFunc("/v1/instances/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		explanation := object(`{"considered":2,"candidates":[{"candidate":TEXT,"constraint":TEXT,"need":TEXT,"have":TEXT,"short":TEXT}],"nearest":{"candidate":TEXT,"constraint":TEXT,"short":TEXT}}`)
		_, _ = fmt.Fprintf(w, `{"summary":%s,"would_help":[%[1]s],"root":%[2]s,"clusters":[{"cluster":%[1]s,"at":%q,"answer":%[2]s}],"instance":{"id":%[3]s,"cluster":%[1]s}}`,
			quoted(markup+control), explanation, now, quoted(evil+"#0"))
	})
	mux.HandleFunc("/v1/clusters/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(object(`{"items":[{"id":TEXT,"cluster":TEXT,"status":TEXT,"arch":TEXT,"os":TEXT,"instances":0,"joined":NOW,"runtimes":[TEXT],"version":TEXT,"cpu_used_percent":1,"memory_used_percent":1,"allocated":` + resources + `,"capacity":` + resources + `}]}`)))
	})
	h.Server = httptest.NewTLSServer(web.Handler(web.Root, mux))
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return h
}

// stream sends the changes after the position of the request, as a root does: the browser may end a
// connection at any time, after the server has written to it.
func (h *hostile) stream(w http.ResponseWriter, r *http.Request) {
	at := r.Header.Get("Last-Event-ID")
	h.mu.Lock()
	next, breaks := h.since, h.breaks
	if i := slices.IndexFunc(h.changes, func(m string) bool { return strings.Contains(m, "\nid: "+at+"\n") }); i >= 0 {
		next = i + 1
	}
	h.resumed = append(h.resumed, at)
	h.tell()
	h.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = w.Write([]byte("event: bookmark\nid: " + at + "\ndata: {\"revision\":7}\n\n"))
	for {
		h.mu.Lock()
		more, news, ended := h.changes[next:], h.news, h.breaks != breaks
		next = len(h.changes)
		h.mu.Unlock()
		for _, m := range more {
			_, _ = w.Write([]byte(m))
		}
		if ended || http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-news:
		case <-r.Context().Done():
			return
		}
	}
}

// tell wakes the streams. mu is held.
func (h *hostile) tell() {
	close(h.news)
	h.news = make(chan struct{})
}

// change sends messages.
func (h *hostile) change(messages ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = append(h.changes, messages...)
	h.tell()
}

// gone says that the changes are no longer known; the lists have them.
func (h *hostile) gone() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = append(h.changes, "event: gone\ndata: {}\n\n")
	h.since = len(h.changes)
	h.tell()
}

// breakStreams ends the streams and returns the position of the next request for one.
func (h *hostile) breakStreams(t *testing.T) string {
	t.Helper()
	h.mu.Lock()
	had := len(h.resumed)
	h.breaks++
	h.tell()
	h.mu.Unlock()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		h.mu.Lock()
		asked := h.resumed[had:]
		h.mu.Unlock()
		if len(asked) > 0 {
			return asked[0]
		}
		if time.Now().After(end) {
			t.Fatal("the page does not ask for the stream again")
		}
	}
}

// No text of others becomes markup, a script, an escape sequence or a change of direction.
func TestTextsOfOthersStayTexts(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	b := open(t, h.URL)
	b.signIn("dora", "x")
	pages := map[string]string{
		"": "Newest events", "apps": "1 / 1", "events": "Detail", "clusters": "Instances",
		"app/" + escape(evil): "Services", "service/" + escape(evil): "Instances", "instance/" + escape(evil+"#0"): "Why it is", "cluster/" + escape(markup+control): "Nodes",
		"records": "User", "volumes": "Snapshots by drivers", "values": "Used by", "secret/evil%2Fdb": "Keys", "webhooks": "Dead letters", "webhook/wh1": "Given up", "addons": "Contents",
	}
	pages["apps"] = "Created"
	for page, text := range pages {
		b.do(chromedp.Evaluate(fmt.Sprintf("location.hash = %s", quoted("#/"+page)), nil))
		b.shows(text)
		b.until("the hostile text on page "+page, "document.querySelector('main').innerText.includes('<img src=x')")
		var found string
		b.do(chromedp.Evaluate(`(() => {
			const bad = [...document.querySelectorAll('main img, main script, [onerror], a[href^="javascript"]')].map((e) => e.outerHTML);
			if (window.caught) bad.push('a script ran');
			const shown = (document.body.innerText + document.title).match(/.{0,40}[\u001b\u0007\u202e\u200b]/);
			if (shown) bad.push("control characters are shown: " + shown[0]);
			if (document.documentElement.scrollWidth > innerWidth) bad.push('the page is ' + document.documentElement.scrollWidth + ' pixels wide');
			for (const a of document.querySelectorAll('a')) if (!/^(#|\/docs\/[a-z\/#-]*$)/.test(a.getAttribute('href'))) bad.push(a.outerHTML);
			return bad.join('\n');
		})()`, &found))
		if found != "" {
			t.Errorf("page %q: %s", page, found)
		}
		if page == "volumes" || page == "webhook/wh1" { // what the installation of the other tests does not have
			b.look(strings.ReplaceAll(page, "/", "-"))
		}
	}
}

// output sends hostile lines, and then as many bytes as the page takes.
func (h *hostile) output(w http.ResponseWriter, r *http.Request) {
	h.reads.Add(1)
	defer h.reads.Add(-1)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	send := func(text string) bool {
		_, err := w.Write([]byte(text))
		return err == nil && http.NewResponseController(w).Flush() == nil
	}
	send(markup + control + "\n" + "\x1b[2J\x1b[?1049h\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\ after\n" +
		"invalid \xff\xfe\xc3( utf-8\n" + "back\b\b\b\bover\rover\n" + "\x1b]52;c;ZXZpbA==\a\x1bP1000p\x1b\\clip\n" + "end of the lines\n")
	if strings.Contains(r.URL.RawQuery, "previous=true") {
		return
	}
	flood := strings.Repeat("x", 1<<20) + "\n" + strings.Repeat("<b>"+control+"</b>\n", 20_000) + strings.Repeat("\x1b[", 100_000) + "\n"
	for send(flood) {
	}
}

// Output of a hostile workload stays text, and more output than can be shown leaves the page usable: it
// reads no more than it shows, and ends the stream when it is left.
func TestOutputOfOthersStaysTextAndLeavesThePageUsable(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	b := open(t, h.URL)
	b.signIn("dora", "x")
	b.do(chromedp.Evaluate(fmt.Sprintf("location.hash = %s", quoted("#/instance/"+escape(evil+"#0"))), nil))
	b.until("the flood is shown", "document.querySelector('.log').innerText.includes('<b>')")
	const check = `(() => {
		const log = document.querySelector('.log'), text = log.innerText, bad = [];
		if (window.caught) bad.push('a script ran');
		if (log.querySelector(':not(.faint)')) bad.push('elements: ' + log.innerHTML.slice(0, 200));
		if (/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u202e]/.test(text)) bad.push('control characters');
		if (text.length > 410_000) bad.push(text.length + ' characters');
		if (text.split('\n').length > 2000) bad.push(text.split('\n').length + ' lines');
		if (text.split('\n').some((l) => l.length > 4000)) bad.push('a line of more than 4000 characters');
		if (document.documentElement.scrollWidth > innerWidth) bad.push('the page is too wide');
		return bad.join('\n');
	})()`
	sound := func() {
		t.Helper()
		var bad string
		if b.do(chromedp.Evaluate(check, &bad)); bad != "" {
			t.Errorf("the output: %s", bad)
		}
	}
	sound()
	b.click("the box for the output before", "document.querySelector('.log').parentElement.querySelector('input[type=checkbox]')")
	b.until("the hostile lines are shown", "document.querySelector('.log').innerText.includes('end of the lines')")
	sound()
	b.until("the texts are left", `['link after', 'invalid \ufffd\ufffd\ufffd( utf-8', 'clip', '<img src=x'].every((s) => document.querySelector('.log').innerText.includes(s))`)
	b.click("the box for the output now", "document.querySelector('.log').parentElement.querySelector('input[type=checkbox]')")
	b.until("the flood is shown again", "document.querySelector('.log').innerText.includes('<b>')")
	began := time.Now()
	b.press("Events")
	b.until("the other page is there", "document.querySelector('h1').innerText === 'Events'")
	t.Logf("left the flooded page within %v", time.Since(began).Round(time.Millisecond))
	for end := time.Now().Add(patience); h.reads.Load() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the stream of the output goes on after the page was left")
		}
	}
}

func escape(id string) string {
	return strings.NewReplacer("/", "%2F", "#", "%23", " ", "%20", "<", "%3C", ">", "%3E", "\"", "%22", "=", "%3D").Replace(id)
}

// The stream resumes after the newest change that the page has, and the page lists again when the
// root no longer has the changes since.
func TestTheStreamResumes(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	b := open(t, h.URL)
	b.signIn("dora", "x")
	h.change("event: change\nid: 9.2\ndata: {\"kind\":\"app\",\"id\":\"acme/new.prod\",\"revision\":9,\"object\":{\"id\":\"acme/new.prod\",\"tenant\":\"acme\",\"created\":\"2026-01-01T00:00:00Z\",\"running\":1,\"wanted\":1,\"services\":[],\"revision\":9,\"spec\":{}}}\n\n")
	b.press("Applications")
	b.shows("acme/new.prod")
	if at := h.breakStreams(t); at != "9.2" {
		t.Errorf("the stream resumed after %v, want 9.2", at)
	}
	h.change("event: change\nid: 10\ndata: {\"kind\":\"app\",\"id\":\"acme/new.prod\",\"revision\":10}\n\n")
	b.until("the application is gone", "!document.body.innerText.includes('acme/new.prod')")
	// A change that is older than what the page has is not applied.
	h.change("event: change\nid: 10.1\ndata: {\"kind\":\"app\",\"id\":\"acme/new.prod\",\"revision\":8,\"object\":{\"id\":\"acme/new.prod\"}}\n\n",
		"event: change\nid: 11\ndata: {\"kind\":\"app\",\"id\":\"acme/last.prod\",\"revision\":11,\"object\":{\"id\":\"acme/last.prod\",\"tenant\":\"acme\",\"created\":\"2026-01-01T00:00:00Z\",\"running\":1,\"wanted\":1,\"services\":[],\"revision\":11,\"spec\":{}}}\n\n")
	b.shows("acme/last.prod")
	if text := b.text(); strings.Contains(text, "acme/new.prod") {
		t.Errorf("an older change was applied:\n%s", text)
	}
	// Clusters that have places are on the map.
	room := `{"milli_cpu":1000,"memory_mb":1024}`
	for i, place := range []string{"48.14N,11.58E", "40.7,-74.0"} {
		h.change(fmt.Sprintf("event: change\nid: %d\ndata: {\"kind\":\"cluster\",\"id\":\"c%[1]d\",\"revision\":%[1]d,\"object\":{\"id\":\"c%[1]d\",\"status\":\"ready\",\"joined\":\"2026-01-01T00:00:00Z\",\"instances\":0,\"location\":%[2]q,\"aggregate\":{\"nodes\":1,\"capacity\":%[3]s,\"free\":%[3]s}}}\n\n", 12+i, place, room))
	}
	b.press("Clusters")
	b.until("both clusters are on the map", "document.querySelectorAll('.map .spot').length === 2")
	b.look("map")
	b.press("Applications")
	before := h.lists.Load()
	h.gone()
	b.until("the page shows the list again", "!document.body.innerText.includes('acme/last.prod')")
	b.until("the stream is live again", "document.querySelector('.freshness').innerText.includes('live')")
	if h.lists.Load() == before {
		t.Error("the page did not list again after the position was gone")
	}
	// Without the root, the page says so, and how old what it shows is.
	b.expectRefusals()
	h.CloseClientConnections()
	h.Listener.Close()
	b.until("the page says that it is offline", "document.querySelector('.freshness').innerText.includes('offline') && document.querySelector('[role=alert]').innerText.includes('cannot be reached')")
	b.until("the page shows the age", "/\\d+ s ago/.test(document.querySelector('.freshness').innerText)")
	b.look("offline")
}
