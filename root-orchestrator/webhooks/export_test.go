package webhooks

import "time"

// PauseFor sets the pauses between tries.
func (h *Hooks) PauseFor(pause func(tries int) time.Duration) { h.pause = pause }

const (
	MaxTries = maxTries
	MaxOwn   = maxOwn
	MaxDead  = maxDead
	SendOwn  = sendOwn
)
