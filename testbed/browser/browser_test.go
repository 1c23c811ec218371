//go:build linux

package browser

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/treeline-edge/treeline/internal/programtest"
)

// patience bounds the wait for what a page should show.
const patience = 2 * time.Minute

//go:embed axe.min.js.gz
var axePacked []byte

var axe = sync.OnceValue(func() string {
	z, err := gzip.NewReader(bytes.NewReader(axePacked))
	if err != nil {
		panic(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		panic(err)
	}
	return string(text)
})

// late matches the browser's message about an answer that says that a cluster or node did not answer in time. That happens
// on a loaded machine; the page shows it and asks again, and a test waits for what it needs.
var late = regexp.MustCompile(`responded with a status of 50[34]\b`)

// tab is a page in a browser of its own.
type tab struct {
	t      *testing.T
	ctx    context.Context
	origin string

	mu      sync.Mutex // guards what follows
	faults  []string
	refused []string // answers with an error, for the output of tests that fail
	removed bool     // the user was removed, so refusals are no faults

	forgiven string // further answers with this status are no faults until the next check
}

// open starts a browser at the dashboard. Its end fails the test if the page had errors, and a test
// that has failed ends with what the page shows.
func open(t *testing.T, origin string) *tab {
	t.Helper()
	programtest.Need(t, "chromium")
	options := append(Options(folder(t)),
		// Chromium ends all HTTP/2 connections when the machine's network changes, which other tests do.
		chromedp.Flag("disable-http2", true), chromedp.WSURLReadTimeout(patience),
	)
	allocated, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(allocated, chromedp.WithErrorf(func(string, ...any) {})) // events that chromedp does not know
	b := &tab{t: t, ctx: ctx, origin: origin}
	t.Cleanup(func() {
		text := ""
		if t.Failed() {
			text = b.text()
		}
		end()
		stop()
		b.sound()
		if t.Failed() {
			t.Logf("the page at the end:\n%s\nanswers with an error:\n%s", text, strings.Join(b.refused, "\n"))
		}
	})
	chromedp.ListenTarget(ctx, b.listen)
	b.do(log.Enable(), network.Enable(), runtime.Enable(), chromedp.Navigate(origin+"/"))
	return b
}

func (b *tab) listen(ev any) {
	fault := ""
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		fault = "exception: " + ev.ExceptionDetails.Error()
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.APITypeError || ev.Type == runtime.APITypeWarning {
			text, _ := json.Marshal(ev.Args)
			fault = "console: " + string(text)
		}
	case *log.EventEntryAdded:
		b.mu.Lock()
		removed := b.removed
		b.mu.Unlock()
		if ev.Entry.Level == log.LevelError && !removed && !late.MatchString(ev.Entry.Text) {
			fault = "log: " + ev.Entry.Text + " " + ev.Entry.URL
		}
	case *network.EventRequestWillBeSent:
		if u := ev.Request.URL; !strings.HasPrefix(u, b.origin+"/") && !strings.HasPrefix(u, "about:") && !strings.HasPrefix(u, "data:") {
			fault = "request to another origin: " + u
		}
	case *network.EventResponseReceived:
		if ev.Response.Status >= 400 {
			b.mu.Lock()
			b.refused = append(b.refused, fmt.Sprintf("%d %s", ev.Response.Status, ev.Response.URL))
			b.mu.Unlock()
		}
	}
	if fault != "" {
		b.mu.Lock()
		b.faults = append(b.faults, fault)
		b.mu.Unlock()
	}
}

// sound fails the test if the page had errors, and forgets them.
func (b *tab) sound() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		if b.forgiven == "" || !strings.Contains(f, answered+b.forgiven) {
			b.t.Error(f)
		}
	}
	b.faults, b.forgiven = nil, ""
}

const answered = "responded with a status of "

// forgive waits for a message about an answer with the status, which a test causes, and drops it, as well as further
// ones until the next check: a page loads its data again at each event.
func (b *tab) forgive(status string) {
	b.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		b.mu.Lock()
		had := len(b.faults)
		b.faults = slices.DeleteFunc(b.faults, func(f string) bool { return strings.Contains(f, answered+status) })
		dropped := len(b.faults) < had
		b.forgiven = status
		b.mu.Unlock()
		if dropped {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("the console has no message about an answer with status %s", status)
		}
	}
}

// expectRefusals drops the browser's messages about requests from now on, because the page's user is
// removed: requests are refused, and streams end.
func (b *tab) expectRefusals() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removed = true
}

func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx); err != nil { // starts the browser, which must not end with the timeout
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		b.t.Fatalf("%v\nthe page shows:\n%s", err, b.text())
	}
}

// text returns what the page shows.
func (b *tab) text() (text string) {
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	_ = chromedp.Run(ctx, chromedp.Evaluate("document.body.innerText", &text))
	return text
}

// until waits until the JavaScript expression is true. An expression that throws is not true: what it
// looks for may not be drawn yet.
func (b *tab) until(what, expression string) {
	b.t.Helper()
	b.untilFor(patience, what, expression)
}

// untilFor waits longer than until, for what daemons do in steps of several seconds.
func (b *tab) untilFor(most time.Duration, what, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, most)
	defer cancel()
	for {
		var is bool
		err := chromedp.Run(ctx, chromedp.Evaluate("!!("+expression+")", &is))
		if err == nil && is {
			return
		}
		select {
		case <-ctx.Done():
			b.t.Fatalf("%s: not within %v, the last time: %v\nthe page shows:\n%s", what, most, err, b.text())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// shows waits until the page shows the text.
func (b *tab) shows(text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("wait for %q", text), fmt.Sprintf("document.body.innerText.includes(%s)", quoted(text)))
}

func quoted(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// press presses the button or follows the link with the text, as soon as it is there and enabled.
func (b *tab) press(text string) {
	b.t.Helper()
	b.click(fmt.Sprintf("wait for the button %q", text), fmt.Sprintf(`[...(document.querySelector('dialog[open]') || document).querySelectorAll('button, a, summary')]
		.find((e) => e.innerText?.trim() === %s && e.offsetParent !== null)`, quoted(text)))
}

// click clicks the element of the JavaScript expression, as soon as it is there and enabled. It is
// found and clicked at once, so that it cannot be replaced between.
func (b *tab) click(what, element string) {
	b.t.Helper()
	b.until(what, fmt.Sprintf("((e) => e && !e.disabled && (e.click(), true))(%s)", element))
}

// fill types the text into the field of the name. The page moves the focus when its route changes,
// which may be while keys are pressed; then it types again.
func (b *tab) fill(name, text string) {
	b.t.Helper()
	field := fmt.Sprintf("document.querySelector('[name=%s]')", name)
	for end := time.Now().Add(patience); ; {
		b.until(fmt.Sprintf("wait for the field %q", name), fmt.Sprintf("((e) => e && !e.disabled && e.offsetParent !== null && (e.focus(), e.select(), document.activeElement === e))(%s)", field))
		var has string
		b.do(chromedp.KeyEvent(text), chromedp.Evaluate(field+"?.value || ''", &has))
		if has == text {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("the field %q has %q, want %q\nthe page shows:\n%s", name, has, text, b.text())
		}
	}
}

// choose chooses a value in the selection of the name.
func (b *tab) choose(name, value string) {
	b.t.Helper()
	b.until(fmt.Sprintf("choose %q in %q", value, name), fmt.Sprintf(`((e) => {
		e.value = %s;
		e.dispatchEvent(new Event('change', {bubbles: true}));
		return e.value === %[1]s;
	})(document.querySelector('[name=%s]'))`, quoted(value), name))
}

// tabTo moves the focus with the tab key to the link or button with the text.
func (b *tab) tabTo(text string) {
	b.t.Helper()
	for range 100 {
		var has string
		b.do(chromedp.KeyEvent(kb.Tab), chromedp.Evaluate("document.activeElement?.innerText || ''", &has))
		if strings.TrimSpace(has) == text {
			return
		}
	}
	b.t.Fatalf("the tab key does not lead to %q\nthe page shows:\n%s", text, b.text())
}

// hash returns the fragment of the page's URL.
func (b *tab) hash() (hash string) {
	b.t.Helper()
	b.do(chromedp.Evaluate("location.hash", &hash))
	return hash
}

// keys types into what has the focus.
func (b *tab) keys(text string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(text))
}

// signIn signs in and waits for the overview with data.
func (b *tab) signIn(user, password string) {
	b.t.Helper()
	b.fill("user", user)
	b.fill("password", password)
	b.press("Sign in")
	b.shows("instances run")
}

// onlyEvents keeps pages from loading their data again without an event, which they do every 20 s or more.
func (b *tab) onlyEvents() {
	b.t.Helper()
	b.do(chromedp.Evaluate("{ const real = setTimeout; window.setTimeout = (f, ms, ...more) => ms >= 15_000 ? 0 : real(f, ms, ...more) }", nil))
}

// look checks a page with axe-core in light and dark, checks that it fits a phone, and keeps
// pictures of it.
func (b *tab) look(name string) {
	b.t.Helper()
	b.sound()
	// In dark, only the colours differ. Chromium applies what is emulated some time after it has answered.
	for _, in := range []struct{ scheme, rules string }{{"light", ""}, {"dark", ", runOnly: ['color-contrast']"}} {
		b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: in.scheme}}))
		b.until("the page is "+in.scheme, fmt.Sprintf("matchMedia('(prefers-color-scheme: %s)').matches", in.scheme))
		b.inspect(name+" in "+in.scheme, in.rules)
		b.picture(name + "-" + in.scheme)
	}
	b.do(chromedp.EmulateViewport(390, 844))
	b.until(name+" fits a phone", "innerWidth === 390 && document.documentElement.scrollWidth <= 390")
	b.picture(name + "-phone")
	b.do(chromedp.EmulateViewport(1280, 900), emulation.SetEmulatedMedia())
	b.until("the window is wide again", "innerWidth === 1280")
}

// inspect checks the page with axe-core.
func (b *tab) inspect(what, rules string) {
	b.t.Helper()
	var found []struct {
		ID, Impact, Help string
		Nodes            []struct {
			HTML           string
			FailureSummary string
		}
	}
	await := func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
	var loaded bool
	if b.do(chromedp.Evaluate("!!window.axe", &loaded)); !loaded {
		b.do(chromedp.Evaluate(axe()+";0", nil))
	}
	b.do(chromedp.Evaluate("axe.run({resultTypes: ['violations']"+rules+"}).then((r) => r.violations)", &found, await))
	for _, v := range found {
		if v.Impact == "serious" || v.Impact == "critical" {
			for _, n := range v.Nodes {
				b.t.Errorf("%s: axe-core: %s (%s): %s\n%s", what, v.ID, v.Help, n.HTML, n.FailureSummary)
			}
		}
	}
}

// picture writes a picture of the page.
func (b *tab) picture(name string) {
	b.t.Helper()
	dir := os.Getenv("TREELINE_SCREENSHOTS")
	if dir == "" {
		dir = "screenshots" // git ignores it
	}
	var png []byte
	b.do(chromedp.FullScreenshot(&png, 100))
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
