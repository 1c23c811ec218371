//go:build race

package httpapi_test

// raceDetector reports whether this test runs under the race detector, whose own
// memory counts as allocated.
const raceDetector = true
