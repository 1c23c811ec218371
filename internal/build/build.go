// Package build reports the version of the running program.
package build

import (
	"runtime/debug"
	"sync"
)

type Info struct {
	Version  string `json:"version"` // of the module; "(unknown)" without build information
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"`     // of the commit, RFC 3339
	Modified bool   `json:"modified,omitempty"` // the checkout had uncommitted changes
	Go       string `json:"go"`
}

// Current returns the build of this program, as the Go toolchain recorded it.
var Current = sync.OnceValue(func() Info {
	b := Info{Version: "(unknown)"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version, b.Go = info.Main.Version, info.GoVersion
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
})
