package bus

import "errors"

// The errors of a bus.
var (
	ErrDown    = errors.New("bus: no connection to the broker")
	ErrRefused = errors.New("bus: the broker refuses it")
	ErrTooBig  = errors.New("bus: message is too long")
	ErrClosed  = errors.New("bus: closed")
)
