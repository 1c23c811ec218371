package sim

import "time"

// rootAway ends the root for a time in which clusters and nodes continue to fail, and their operators
// continue to work. No machine is removed meanwhile, because nobody could tell the root.
func (w *World) rootAway(d time.Duration) {
	w.note("world", "the root is away for %s", d)
	w.root.crash()
	w.root.away = true
	for end := w.now + d; w.now < end && w.violation == nil; {
		w.Run(time.Second)
		w.look()
	}
	w.root.away = false
	w.note("world", "the root returns")
	w.root.start()
}
