//go:build !amd64

package main

import "errors"

// write fails: virtual machines are supported on amd64 only.
func write(uint16, byte) error { return errors.ErrUnsupported }
