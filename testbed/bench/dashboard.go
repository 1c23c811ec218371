package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/cdproto/cdp"
	cdpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/browser"
	"github.com/treeline-edge/treeline/testbed/lab"
)

const (
	pageLimit    = 1000 // ms
	pagePatience = time.Minute
	pageApps     = 20
	pageServices = 5 // of each application
)

// visit is a page of which the time until it is interactive is measured.
type visit struct {
	path string
	// ready is a JavaScript expression: what the person wants to see is drawn. From then on, a key is pressed. The page
	// is interactive when reacts, an expression too, is true.
	ready, reacts string
	key           string
}

var (
	// emptyPage is the floor: the smallest document of the root, without a script.
	emptyPage = visit{path: "/ui/icon.svg", ready: "document.rootElement", reacts: "pressed", key: "x"}
	// signInPage takes the first letter of a name.
	signInPage = visit{
		path: "/ui/", key: "x",
		ready:  "document.querySelector('[name=user]') && (document.querySelector('[name=user]').focus(), true)",
		reacts: "document.querySelector('[name=user]').value === 'x'",
	}
	// overviewPage shows figures and events, and Enter on a link opens another page.
	overviewPage = visit{
		path: "/ui/", key: "\r",
		ready: `document.querySelectorAll('.tile').length && document.querySelectorAll('main tbody tr').length &&
			(document.querySelector('nav a[href="#/apps"]').focus(), true)`,
		reacts: "document.querySelector('h1')?.innerText === 'Applications' && document.querySelectorAll('main tbody tr').length",
	}
)

// pageScript reports, by the binding "measured", when the page is ready and when it has reacted, in ms since the navigation
// began. A time is that of a task after the frame in which the condition became true, so that work which keeps the page from
// reacting counts.
const pageScript = `(() => {
	if (location.protocol === 'about:') return;
	const session = %s;
	if (session) sessionStorage.setItem('treeline-session', session);
	let pressed = false;
	addEventListener('keydown', () => (pressed = true), true);
	const when = (is, name, next) => {
		let yes = false;
		try { yes = !!is(); } catch {}
		if (!yes) return requestAnimationFrame(() => when(is, name, next));
		const c = new MessageChannel();
		c.port1.onmessage = () => { measured(JSON.stringify({name, at: performance.now(), session: sessionStorage.getItem('treeline-session') || ''})); next?.(); };
		requestAnimationFrame(() => c.port2.postMessage(0));
	};
	when(() => %s, 'ready', () => when(() => %s, 'reacted'));
})()`

type measured struct {
	Name    string
	At      float64 // ms
	Session string
}

// dashboard measures the time from the start of a navigation until the page is interactive, in a browser without a cache
// and without a connection to the root: the page for signing in, and the overview of a person who is signed in.
func dashboard(r *run) error {
	return inLab(r, func(l *lab.Lab) error {
		c1 := l.Cluster("c1", lab.ClusterOptions{Args: quiet})
		c1.Node("n1", lab.NodeOptions{Args: quiet})
		l.Wait("the node takes work", lab.Nodes("c1", 1))
		l.Apply(lab.App("shop", l.Process("web", 3)))
		l.Wait("the application runs", l.Running("shop", "web", 3))
		for i := range pageApps {
			var services []api.Microservice
			for j := range pageServices {
				services = append(services, lab.Needing(l.Process(fmt.Sprintf("s%d", j), 1), 1, 1<<20)) // waits for room
			}
			l.Apply(lab.App(fmt.Sprintf("app%d", i), services...))
		}
		session, err := pageSession(l)
		if err != nil {
			return err
		}
		home := filepath.Join(l.Dir, "browser")
		if err := os.Mkdir(home, 0o700); err != nil {
			return err
		}
		allocated, stop := chromedp.NewExecAllocator(r.ctx, browser.Options(home)...)
		defer stop()
		chromium, end := chromedp.NewContext(allocated, chromedp.WithErrorf(func(string, ...any) {})) // events that chromedp does not know
		defer end()
		if err := chromedp.Run(chromium); err != nil {
			return fmt.Errorf("start chromium: %w", err)
		}
		var floor, signIn, overview series
		var drawn []float64
		for i := range r.n + 1 {
			w := watch(l.Dir)
			empty, err := visitPage(chromium, l, emptyPage, "")
			if err != nil {
				return fmt.Errorf("empty page: %w", err)
			}
			first, err := visitPage(chromium, l, signInPage, "")
			if err != nil {
				return fmt.Errorf("sign-in page: %w", err)
			}
			full, err := visitPage(chromium, l, overviewPage, session)
			if err != nil {
				return fmt.Errorf("overview: %w", err)
			}
			session = full[1].Session
			if i == 0 {
				continue // the browser loads its own code
			}
			bad := w.disturbed()
			floor.add(empty[1].At, bad)
			signIn.add(first[1].At, bad)
			overview.add(full[1].At, bad)
			drawn = append(drawn, full[0].At)
		}
		base := floor.record("dashboard.floor", "ms")
		r.emit(base.noting("an empty page of the same root takes a key"))
		r.emit(signIn.record("dashboard.sign-in", "ms").over(base.Name, base.Median).atMost(pageLimit).
			noting("from the start of the navigation, in a browser without cache and connection, until the page has taken a letter"))
		r.emit(overview.record("dashboard.overview", "ms").over(base.Name, base.Median).atMost(pageLimit).
			noting("until another page is open by a key, with %d applications; the overview with its figures is drawn after %.0f ms (median)", pageApps+1, quantile(drawn, 0.5)))
		return nil
	})
}

// pageSession returns what the dashboard keeps of a session.
func pageSession(l *lab.Lab) (string, error) {
	invited, err := l.API.CreateUser(l.Context(), string(l.Tenant)+"/dora", "Application_Provider")
	if err != nil {
		return "", fmt.Errorf("create a user: %w", err)
	}
	c := l.Client(nil)
	defer c.Close()
	s, err := c.Redeem(l.Context(), api.Redeem{User: invited.User, Code: invited.Code, Password: "correct horse battery"})
	if err != nil {
		return "", fmt.Errorf("sign in: %w", err)
	}
	text, err := json.Marshal(map[string]string{"refresh": s.Refresh})
	return string(text), err
}

// visitPage opens a page in a browser profile of its own, and returns when it was ready and when it had reacted.
func visitPage(chromium context.Context, l *lab.Lab, v visit, session string) (out [2]measured, err error) {
	onBrowser := cdp.WithExecutor(chromium, chromedp.FromContext(chromium).Browser)
	profile, err := target.CreateBrowserContext().Do(onBrowser)
	if err != nil {
		return out, fmt.Errorf("create a profile: %w", err)
	}
	defer func() { err = errors.Join(err, target.DisposeBrowserContext(profile).Do(onBrowser)) }()
	tab, err := target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).Do(onBrowser)
	if err != nil {
		return out, fmt.Errorf("create a tab: %w", err)
	}
	ctx, end := chromedp.NewContext(chromium, chromedp.WithTargetID(tab))
	defer end()
	if err := chromedp.Run(ctx); err != nil { // must not end with the timeout
		return out, err
	}
	reports := make(chan measured, 2)
	chromedp.ListenTarget(ctx, func(ev any) {
		if e, ok := ev.(*runtime.EventBindingCalled); ok {
			var m measured
			if json.Unmarshal([]byte(e.Payload), &m) == nil {
				reports <- m
			}
		}
	})
	limited, cancel := context.WithTimeout(ctx, pagePatience)
	defer cancel()
	kept, err := json.Marshal(session)
	if err != nil {
		return out, err
	}
	script := fmt.Sprintf(pageScript, kept, v.ready, v.reacts)
	if err := chromedp.Run(limited,
		chromedp.ActionFunc(func(ctx context.Context) error {
			if err := runtime.Enable().Do(ctx); err != nil {
				return err
			}
			if err := runtime.AddBinding("measured").Do(ctx); err != nil {
				return err
			}
			if _, err := cdpage.AddScriptToEvaluateOnNewDocument(script).Do(ctx); err != nil {
				return err
			}
			_, _, _, _, err := cdpage.Navigate("https://" + l.RootLink.Addr() + v.path).Do(ctx)
			return err
		})); err != nil {
		return out, err
	}
	for i := range out {
		select {
		case out[i] = <-reports:
		case <-limited.Done():
			return out, fmt.Errorf("page %s: report %d has not come within %s", v.path, i+1, pagePatience)
		}
		if i == 0 {
			if err := chromedp.Run(limited, chromedp.KeyEvent(v.key)); err != nil {
				return out, fmt.Errorf("press a key: %w", err)
			}
		}
	}
	return out, nil
}
