package browser

import (
	"path/filepath"
	"slices"

	"github.com/chromedp/chromedp"
)

// Options start Chromium with its files below home. It accepts every certificate.
func Options(home string) []chromedp.ExecAllocatorOption {
	return append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.UserDataDir(filepath.Join(home, "profile")),
		// Chromium writes below HOME, too.
		chromedp.Env("HOME="+home, "DBUS_SESSION_BUS_ADDRESS=disabled:"),
		chromedp.Flag("ignore-certificate-errors", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-breakpad", true),
		chromedp.WindowSize(1280, 900),
	)
}
