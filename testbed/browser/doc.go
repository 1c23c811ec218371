// Package browser tests the dashboard in Chromium against a whole installation: its daemons are
// processes, with the process runtime. Each test does a user's job from sign-in on, and fails on
// messages in the browser's console, on requests to other origins and on violations that axe-core
// finds.
//
// The tests write pictures of the pages to the directory screenshots, or to $TREELINE_SCREENSHOTS.
//
// axe.min.js.gz is axe-core 4.14.1 (npm, MPL-2.0), for tests only.
package browser
