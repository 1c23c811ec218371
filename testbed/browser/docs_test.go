//go:build linux

package browser

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// A stranger reads the documentation and searches it, reads about the API without a session, signs in there and sends a request.
func (in *installation) reader(t *testing.T) {
	in.t = t
	in.user("acme/reader", "Application_Provider")
	in.apply("readable", `"sleep", "1h"`, 16, 1)

	b := open(t, in.URL)
	b.until("wait for the form of the sign-in", "!!document.querySelector('[name=user]')")
	b.press("Docs")
	b.until("wait for the contents", "document.title.startsWith('Documentation')")
	b.look("docs")
	b.press("Placement: where instances run")
	b.until("wait for the page about placement", "location.pathname === '/docs/how-to/placement' && !!document.querySelector('pre.commands + .copy')")
	b.look("docs-placement")
	b.keys("/")
	b.until("wait for the focus of the search", "document.activeElement.id === 'search'")
	b.do(chromedp.Evaluate("document.getElementById('search').select()", nil), chromedp.SendKeys("#search", "private registries"))
	b.until("wait for what was found", "!document.getElementById('found').hidden && !!document.querySelector('.results a')")
	b.look("docs-search")
	b.do(chromedp.SendKeys("#search", kb.Enter))
	b.until("wait for the page that was found first", "location.href.endsWith('/docs/how-to/images#private-registries')")
	b.do(chromedp.Navigate(in.URL + "/docs/reference/configuration"))
	b.shows("node_caps.privileged")
	b.look("docs-configuration")

	b.do(chromedp.Navigate(in.URL + "/v1/docs"))
	b.shows("/v1/instances/{id}/why")
	b.fill("operations", "list apps")
	b.until("wait for one operation", "document.querySelectorAll('.operation').length === 1")
	b.do(chromedp.Evaluate("document.querySelector('.operation > summary').click()", nil))
	b.shows("Objects on a page.")
	b.shows("Sign in to try this request.")
	b.look("api")
	b.press("Sign in")
	b.fill("user", "acme/reader")
	b.fill("password", password)
	b.do(chromedp.Evaluate("document.querySelector('form button[type=submit]').click()", nil))
	b.fill("operations", "list apps")
	b.until("wait for one operation", "document.querySelectorAll('.operation').length === 1")
	b.do(chromedp.Evaluate("document.querySelector('.operation > summary').click()", nil))
	b.press("Send GET")
	b.shows("acme/readable.prod")
	b.look("api-answer")

	b.do(chromedp.Navigate(in.URL + "/docs/no/such/page"))
	b.shows("No such page")
	b.forgive("404")
}
