package autoscale

import "time"

// window has the numbers that were wanted lately. It keeps only those that can still be the extreme
// of a window, so it has at most as many entries as there are different numbers.
type window []wanted

type wanted struct {
	at time.Time
	n  int
}

// least adds n and returns the smallest number within the window.
func (w *window) least(now time.Time, length time.Duration, n int) int {
	return w.extreme(now, length, n, func(older int) bool { return older >= n })
}

// most adds n and returns the largest number within the window.
func (w *window) most(now time.Time, length time.Duration, n int) int {
	return w.extreme(now, length, n, func(older int) bool { return older <= n })
}

// extreme drops the entries that n surpasses and those that are too old, and returns the first.
func (w *window) extreme(now time.Time, length time.Duration, n int, surpassed func(int) bool) int {
	all := *w
	for len(all) > 0 && surpassed(all[len(all)-1].n) {
		all = all[:len(all)-1]
	}
	all = append(all, wanted{now, n})
	for now.Sub(all[0].at) > length {
		all = all[1:]
	}
	*w = all
	return all[0].n
}
