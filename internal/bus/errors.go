package bus

import "errors"

// What a bus refuses.
var (
	ErrDown    = errors.New("bus: no connection to the broker")
	ErrRefused = errors.New("bus: the broker refuses it")
	ErrTooBig  = errors.New("bus: message is over the limit")
	ErrClosed  = errors.New("bus: closed")
)
