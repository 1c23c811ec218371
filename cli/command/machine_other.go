//go:build !linux

package command

import (
	"context"
	"time"
)

func checkHost(string, string) []checked {
	return []checked{failed("system", "run the daemons on Linux", "the daemons run on Linux only")}
}

func awaitInstalled(context.Context, string, time.Duration) []checked { return checkHost("", "") }
